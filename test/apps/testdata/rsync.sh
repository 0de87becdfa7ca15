#!/bin/sh
# rsync in the directory $1.
set -eu
cd "$1"
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT
mkdir -p src/sub/deep
for i in 1 2 3; do seq 1 ${i}000 | tee src/$i | tail -n 1; done
head -c 5000000 /dev/zero | tee src/sub/large | wc -c
seq 1 200 | split -l 1 -d -a 3 - src/sub/deep/
ln -s 1 src/link
find src -print0 | xargs -0 touch -h -d '2020-01-02 03:04:05 UTC'
chmod 640 src/1
echo "-- within"
rsync -a src/ dst/
diff -r src dst && echo same
stat -c '%a %Y %n' dst/1 dst/sub dst/sub/deep/199
echo "-- nothing to do"
rsync -ai src/ dst/
echo "-- a delta"
echo changed | dd of=src/sub/large bs=1 seek=2000000 conv=notrunc status=none
touch -d '2021-01-02 03:04:05 UTC' src/sub/large
rsync -ai --no-whole-file src/ dst/
cmp src/sub/large dst/sub/large && echo same
echo "-- in place, and appended"
echo more | dd of=src/2 oflag=append conv=notrunc status=none
touch -d '2021-01-02 03:04:05 UTC' src/2
rsync -ai --inplace src/ dst/
cmp src/2 dst/2 && echo same
echo "-- deleted"
rm -r src/3 src/sub/deep
rsync -a --delete src/ dst/
ls dst dst/sub
echo "-- out and back"
rsync -a --fsync src/ "$outside/copy/"
diff -r src "$outside/copy" && echo same
rsync -aS --checksum "$outside/copy/" back/
diff -r src back && echo same
