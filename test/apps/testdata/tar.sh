#!/bin/sh
# tar in the directory $1.
set -eu
cd "$1"
mkdir -p src/sub
seq 1 20000 | tee src/numbers | tail -n 1
seq 1 300 | tee src/sub/few | tail -n 1
ln -s numbers src/link
ln src/numbers src/hard
truncate -s 3M src/sparse
long=src/$(printf '%0200d' 0)
echo long | tee "$long"
touch -d '2020-01-02 03:04:05 UTC' src/numbers src/sub

echo "-- c, t"
tar cf a.tar src
tar tf a.tar | sort
tar tvf a.tar | grep few | cut -c1-10
echo "-- x"
mkdir out
tar xf a.tar -C out
diff -r src out/src
stat -c '%n %s %h %Y' out/src/numbers
echo "-- d"
tar df a.tar && echo same
echo "-- r, u, --delete"
tar rf a.tar -C src/sub few
tar --delete -f a.tar src/sub/few
tar tf a.tar | sort | tail -n 3
echo newer | tee src/sub/few
tar uf a.tar src
tar xOf a.tar src/sub/few
echo "-- S"
tar cSf sparse.tar src/sparse
[ "$(stat -c %s sparse.tar)" -lt 100000 ] && echo small
mkdir sparse
tar xSf sparse.tar -C sparse
cmp src/sparse sparse/src/sparse && echo same
echo "-- pipes"
mkdir piped
tar cf - src | (cd piped && tar xf -)
diff -r src piped/src && echo same
echo "-- incremental"
tar cf 0.tar -g snapshot.tar src && tar tf 0.tar | wc -l
