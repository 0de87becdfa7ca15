#!/bin/sh
# Programs in the directory $1 whose children use what they have opened there.
set -eu
cd "$1"
mkdir -p a/b
echo "-- redirected"
seq 1 1000 >a/one
seq 1 2000 >>a/one
wc -l <a/one
sort -n <a/one >a/b/sorted 2>a/errors
tail -n 1 a/b/sorted
{ echo first; cat a/one; echo last; } >a/all
tail -n 1 a/all
echo "-- find"
find . -name sorted -exec tail -n 1 '{}' +
find . -name sorted -execdir tail -n 1 '{}' ';'
find a -type f -exec touch -d '2020-01-02 03:04:05 UTC' '{}' ';'
stat -c %Y a/one
echo "-- tar and a compressor"
tar czf a.tgz a
mkdir out
tar xzf a.tgz -C out
diff -r a out/a && echo same
gzip -kn a/one
gzip -dc a/one.gz | cmp - a/one && echo same
