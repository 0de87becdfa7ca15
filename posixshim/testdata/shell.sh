#!/bin/sh
# A shell whose working directory is below $1, and commands that it runs there. The output of runs in two directories
# can be compared.
set -eu
d=$1
step() { echo "--- $1"; }
hide() { sed "s|$d|DIR|g"; }

step "mkdir and cd"
cd "$d"
mkdir -p a/b
cd a/b
pwd | hide
/bin/pwd | hide
step "relative paths of commands"
touch here
ls
cp here ../there
cd ..
ls . b
step "what commands leave is seen by the shell"
for i in 1 2 3; do
	cp there "b/$i"
	[ -e "b/$i" ] && echo "$i is there"
done
echo b/*
for f in b/*; do
	[ -f "$f" ] && echo "$f"
done
step "the shell writes itself"
echo one >text
echo two >>text
while read -r line; do echo "read $line"; done <text
step "subshells and pipes"
(
	echo three >b/sub
	cat b/sub
)
for i in 1 2 3; do echo $i; done | while read -r i; do echo "got $i" >>b/log; done
cat b/log
count=$(wc -l b/log)
echo "$count"
step "tar"
tar cf all.tar b there
tar tf all.tar | sort
mkdir c
cd c
tar xf ../all.tar
ls
step "find"
cd "$d"
find . | sort
step "from above"
cd "$(dirname "$d")"
ls "$(basename "$d")/a"
cat "./$(basename "$d")/a/text"
cd "$(basename "$d")/a"
pwd | hide
(cd /usr && ls "..$d/a")
step "out again"
cd ..
[ "$(pwd)" = "$(dirname "$d")" ] && echo parent
cd /
[ "$(pwd)" = / ] && echo root
cd "$d/a"
rm -r b c
step "end"
ls
