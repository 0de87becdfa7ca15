#!/bin/sh
# A program without the library gets descriptors of files in the mount $1, for reading. $2 copies its input to its output.
d=$1
shift
printf 12345678 >"$d/in"
( dd bs=4 count=1 of=/dev/null status=none; "$@"; cat ) <"$d/in"
echo " from an offset, which stays: $?"
timeout 100 "$@" <"$d/in"
echo " found in PATH: $?"
printf '#!%s\n' "$1" >"$d/script"
sh -c 'exec 4<"$0/script" 5<&4; exec "$@" <&5' "$d" "$@"
echo "executed by the process that has it open: $?"
mkdir "$d/dir"
exec 3<"$d/dir"
: >"$d/dir/entry"
env -i find /dev/fd/3/ -type f -printf '%f\n'
"$@" <>"$d/in"
echo "open for writing too: $?"
exec 3<"$d/in"
mv "$d/in" "$d/moved"
echo another file >"$d/in"
"$@" <&3
echo "renamed: $?"
rm "$d/moved"
echo another file >"$d/in (deleted)"
"$@" <&3
echo "without a name: $?"
