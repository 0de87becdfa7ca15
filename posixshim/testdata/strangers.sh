#!/bin/sh
# Programs without the library get descriptors of files in the mount $1. $2 copies its input to its output. If it cannot read its
# input it must fail, and it must not create a file elsewhere. What it has copied is printed.
d=$1
shift
echo kept >"$d/in"
"$@" <"$d/in" >"$d/out"
echo "both: $?"
cat "$d/out"
echo text | "$@" >"$d/out"
echo "writes: $?"
"$@" <"$d/in"
echo "reads: $?"
echo text | "$@"
echo "neither: $?"
( "$@" </dev/null >>"$d/in" )
echo "writes nothing: $?"
cat "$d/in" "$d/out"
ls "$d"
