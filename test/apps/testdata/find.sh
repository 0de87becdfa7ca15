#!/bin/sh
# find, du and dd in the directory $1.
set -eu
cd "$1"
mkdir -p a/b/c empty
seq 1 1000 | tee a/one | tail -n 1
seq 1 2000 | tee a/b/two | tail -n 1
seq 1 3000 | tee a/b/c/three | tail -n 1
ln -s ../one a/b/link
ln a/one a/other
touch -d '2020-01-02 03:04:05 UTC' a/one
chmod 600 a/b/two
echo "-- find"
find . | sort
find "$1" -type f -size +8k | sort
find . -type d -empty
find . -newer a/one -type f | sort
find . -perm 600
find . -samefile a/one | sort
find -L . -name link -type f -printf '%p %s %l\n'
find a -type l -printf '%p %l\n'
find . -type f -print0 | sort -z | xargs -0 cat | wc -l
find a -depth | tail -n 1
echo "-- du"
du -b a/one a/b/two a/b/c/three
du -b --inodes a
du -l --apparent-size -b a/one
[ "$(du -s a | cut -f1)" -gt 20 ] && echo blocks
echo "-- dd"
dd if=/dev/zero of=dd bs=64k count=5 conv=fsync status=none && stat -c %s dd
dd if=a/one of=dd bs=1000 seek=100 conv=notrunc,fdatasync status=none && stat -c %s dd
dd if=a/one of=dd bs=512 oflag=append,dsync conv=notrunc status=none && stat -c %s dd
dd if=/dev/zero of=hole bs=1 seek=1M count=0 status=none && stat -c %s hole
dd if=dd of=copy bs=4k oflag=sync status=none && cmp dd copy && echo same
dd if=dd of=sparse bs=4k conv=sparse status=none && cmp dd sparse && echo same
dd if=dd bs=100 skip=30 count=2 iflag=skip_bytes,fullblock status=none | wc -c
dd if=dd of=copy conv=excl status=none || echo "excl: $?"
dd if=a/one of=upper conv=ucase,sync bs=4k status=none && cmp a/one upper || echo "padded: $?"
echo "-- delete"
find . -name three -delete
find a -mindepth 1 -delete
find . | sort
