#!/bin/sh
# Runs coreutils in the directory $1 and prints the results, so that runs in two directories can be compared. $2 is a directory
# outside the mount.
set -u
d=$1
out=$2
cd "$out" || exit 1

step() {
	echo "--- $1"
	shift
	"$@" 2>&1 | sed "s|$d|DIR|g; s|$out|OUT|g"
}

seq 1 20000 >numbers
head -c 3000000 /dev/zero | tr '\0' 'x' >large

step "mkdir" mkdir "$d/a" "$d/a/b"
step "mkdir again" mkdir "$d/a"
step "mkdir -p" mkdir -p "$d/a/b/c/d"
step "cp in" cp numbers "$d/a/numbers"
step "cp large" cp large "$d/large"
step "cmp" cmp numbers "$d/a/numbers"
step "cmp large" cmp large "$d/large"
step "cp inside" cp "$d/a/numbers" "$d/a/b/copy"
step "cat" sh -c "cat '$d/a/b/copy' | tail -n 2"
step "wc" wc -l "$d/a/numbers"
step "wc -c" wc -c "$d/large"
step "head" head -n 3 "$d/a/numbers"
step "tail" tail -n 3 "$d/a/numbers"
step "tail -c" tail -c 10 "$d/large"
step "sha256sum" sha256sum "$d/a/numbers" "$d/large"
step "ls" ls "$d" "$d/a"
step "ls -1a" ls -1a "$d/a"
step "ls -l of a file" sh -c "ls -l '$d/a/numbers' | cut -c1-10"
step "ls missing" ls "$d/missing"
step "mv" mv "$d/a/b/copy" "$d/moved"
step "mv over" sh -c "cp numbers '$d/x' && mv '$d/moved' '$d/x' && ls '$d'"
step "mv out" mv "$d/x" "$out/back"
step "cmp back" cmp numbers back
step "mv in" mv "$out/back" "$d/again"
step "mv directory" mv "$d/a/b" "$d/b"
step "ls -R" ls -R "$d"
step "ln" ln "$d/again" "$d/hard"
step "stat links" stat -c '%h %s %F' "$d/hard"
step "ln -s" ln -s again "$d/soft"
step "readlink" readlink "$d/soft"
step "cat link" sh -c "head -c 10 '$d/soft'"
step "stat link" stat -c '%F %N' "$d/soft"
step "ls -F" ls -F "$d"
step "cp -a" cp -a "$d/b" "$d/b2"
step "cp -r out" cp -r "$d/b2" "$out/b2"
step "ls out" ls -R "$out/b2"
step "cp -p" sh -c "touch -d '2020-01-02 03:04:05 UTC' '$d/again' && cp -p '$d/again' '$out/kept' && stat -c %Y '$out/kept'"
step "touch" touch "$d/touched"
step "touch -d" sh -c "touch -d '2001-02-03 04:05:06 UTC' '$d/touched' && stat -c '%Y %s' '$d/touched'"
step "touch -c" touch -c "$d/not-there"
step "chmod" sh -c "chmod 640 '$d/touched' && stat -c %a '$d/touched'"
step "umask" sh -c "umask 077; touch '$d/private' && stat -c %a '$d/private'"
step "truncate up" sh -c "truncate -s 100000 '$d/touched' && stat -c %s '$d/touched'"
step "truncate down" sh -c "truncate -s 10 '$d/again' && cat '$d/again'"
step "dd" sh -c "dd if=numbers of='$d/dd' bs=1000 conv=fsync status=none && cmp numbers '$d/dd'"
step "dd seek" sh -c "echo hello | dd of='$d/dd' bs=1 seek=5 conv=notrunc status=none && head -c 20 '$d/dd'"
step "dd skip" dd if="$d/dd" bs=10 skip=2 count=1 status=none
step "dd append" sh -c "echo end | dd of='$d/dd' oflag=append conv=notrunc status=none && tail -n 1 '$d/dd'"
step "du -b" sh -c "du -b '$d/dd' | cut -f1"
step "test" sh -c "test -f '$d/dd' && test -d '$d/b' && test -L '$d/soft' && ! test -e '$d/nope' && echo yes"
step "df" sh -c "df --output=target '$d' >/dev/null && echo works"
step "sync" sync "$d/dd"
step "rmdir full" rmdir "$d/a"
step "rmdir" sh -c "rm '$d/a/numbers' && rmdir '$d/a' && echo gone"
step "rm missing" rm "$d/nope"
step "rm directory" rm "$d/b"
step "rm -r" rm -r "$d/b" "$d/b2"
step "rm -f" rm -f "$d/nope" "$d/hard" "$d/soft"
step "cp onto itself" cp "$d/dd" "$d/dd"
step "cat directory" cat "$d"
step "dots" sh -c "cat '$d/./../$(basename "$d")//dd' | wc -c"
step "ls at the end" ls "$d"
follow() {
	echo first >"$d/follow"
	: >"$out/followed" # the shell in the background may come late
	timeout 200 tail -f -s 0.1 "$d/follow" >>"$out/followed" &
	until grep -q first "$out/followed"; do sleep 0.1; done
	echo second >>"$d/follow"
	n=0
	until grep -q second "$out/followed" || [ $((n += 1)) -gt 2000 ]; do sleep 0.1; done
	kill $!
	cat "$out/followed"
	rm "$d/follow"
}
step "tail -f" follow
step "rm all" sh -c "rm -rf '$d/large' '$d/dd' '$d/again' '$d/touched' '$d/private' && ls -A '$d'"
