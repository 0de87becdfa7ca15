#!/bin/sh
# Runs $2 with its standard streams in files of the directory $1.
d=$1
for how in dup2 used unbuffered freopen append open both closed exit exec error; do
	"$2" $how "$d/$how"
	echo "$how: $?"
	cat "$d/$how"
done
"$2" append "$d/append"
"$2" given > "$d/given"
"$2" given >> "$d/given"
"$2" given 2>&1 | tee "$d/tee" > "$d/piped"
(exec > "$d/script"; echo script; "$2" given; env -i "$2" given 2> /dev/null; echo end)
tail "$d/append" "$d/given" "$d/tee" "$d/piped" "$d/script" -n 100 | cut -d/ -f1
printf 'one\ntwo words\na line\npart-word\nthree\nfour\n' > "$d/input"
"$2" in "$d/input"
"$2" kept < "$d/input"
