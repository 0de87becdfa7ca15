#!/bin/sh
# shellcheck disable=SC2016 # scripts are written here, not expanded
# shellcheck disable=SC2005 # what a command is substituted for is wanted
# Creates programs and scripts in the directory $1, and executes them there, as builds do. $2 is a directory outside the mount, $3
# a shell. The output of runs in two directories can be compared.
set -u
d=$1 elsewhere=$2 shell=$3
step() { echo "--- $1"; }
hide() { sed "s|${NVMECR_EXPORT:-/none}/self|DIR|g; s|$d|DIR|g; s|$elsewhere|ELSEWHERE|g"; } # the kernel's name for $1, too
said() { "$@" 2>&1 | sed 's/.*: //'; } # without the shell's name and line

cd "$d" || exit 1
cat >hi.c <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	printf("hi from");
	for (int i = 0; i < argc; i++)
		printf(" %s", argv[i]);
	printf(" at %s\n", getenv("AT") ? getenv("AT") : "no place");
	return argc;
}
C
step "compile and run"
gcc -o hi hi.c && ./hi
echo $?
./hi one two; echo $?
AT=sea ./hi
"$d/hi" absolute | hide
env -i ./hi bare
gcc -static -o still hi.c && ./still
step "scripts"
printf '#!/bin/sh\necho "script $0 of $#: $*"; cat "$0" | wc -l\n' >script
said ./script
chmod +x script
./script a 'b c'
"$d/script" | hide
printf '#! /usr/bin/env python3\nimport sys; print("python", sys.argv)\n' >snake && chmod +x snake
./snake 1 2
printf '#!/usr/bin/awk -f\nBEGIN { print "awk", ARGV[1] }\n' >bird && chmod +x bird
./bird x
echo 'echo plain $0 $1; exit 9' >plain && chmod +x plain
./plain x; echo $?
step "what cannot be executed"
said ./nonexistent
said ./hi.c
said ./hi/x
ln -s round round
said ./round
printf '#!/nonexistent/interpreter\n' >lost && chmod +x lost
./lost 2>/dev/null; echo $?
step "PATH"
mkdir bin
cp hi bin/hello
PATH=$PATH:$d/bin
hello path
command -v hello | hide
env hello env
echo word | xargs hello
find . -name 'hel*' -exec hello {} \;
PATH=bin:$PATH hello relative
step "links"
ln -s bin/hello ln
./ln
ln -s /bin/echo out
./out from elsewhere
ln hi hard
./hard
step "redirected, and in place of the shell"
./hi >log; cat log
$shell -c 'exec ./hi in its place >log'; echo $?; cat log
$shell -c 'exec ./script in its place >>log'; hide <log
./hi a | ./snake | tr a b
$shell -c './hi background >log & wait; cat log'
echo "$(./hi substituted)"
{ ./script a; ./hi b; } >both; cat both
cd bin && ../hi up && ./hello down && cd ..
cd / && "$d/hi" "from above" | hide; cd "$d" || exit 1
step "while it is written anew, and removed"
cat >slow.c <<'C'
#include <stdio.h>
#include <unistd.h>
int main(void)
{
	char c;
	printf("started\n");
	fflush(stdout);
	ssize_t n = read(0, &c, 1);
	printf("still here %zd\n", n);
	return 0;
}
C
gcc -o slow slow.c
mkfifo "$elsewhere/in" "$elsewhere/out"
./slow <"$elsewhere/in" >"$elsewhere/out" &
exec 5>"$elsewhere/in" 6<"$elsewhere/out"
read -r line <&6; echo "$line"
rm slow && cp hi slow
./slow anew
echo >&5
cat <&6
exec 5>&- 6<&-
wait
step "other languages"
python3 - <<'P'
import os, subprocess
print(subprocess.run(["./hi", "python"], stdout=subprocess.PIPE).stdout.decode(), end="")
print(subprocess.run("./script shell", shell=True, stdout=subprocess.PIPE).stdout.decode(), end="")
print(subprocess.run(["hello"], stdout=subprocess.PIPE, close_fds=False).stdout.decode(), end="")
print(subprocess.run(["./hi"], stdout=subprocess.PIPE, cwd="bin/..", env={"AT": "python"}).stdout.decode(), end="")
for name in "./nonexistent", "./hi.c", "./hi/x":
    try:
        subprocess.run([name])
    except OSError as e:
        print(type(e).__name__)
print(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("./hi", ["hi"], {}), 0)[1]))
with open("open", "w") as f:
    subprocess.run(["./hi", "into", "an open file"], stdout=f)
print(open("open").read(), end="")
P
perl -e 'print `./hi perl`; system("./hi", "list"); print $? >> 8, "\n"; exec "./hi", "exec"'
step "make"
printf 'all: out.txt\n\t./script made\nout.txt: gen\n\t./gen make >$@\n\tcat $@\ngen: hi.c\n\tgcc -o $@ $<\n' >Makefile
make -s
step "configure"
cat >configure <<'S'
#! /bin/sh
echo "checking whether programs run... "
cat >conftest.c <<C
#include <stdio.h>
int main(void) { FILE *f = fopen("conftest.out", "w"); return f == 0 || fprintf(f, "%zu\n", sizeof(long)) < 0 || fclose(f) != 0; }
C
gcc -o conftest conftest.c && ./conftest && (./conftest; exit) 2>/dev/null && echo yes
echo "long has $(cat conftest.out) bytes"
rm -f conftest*
sed "s/@SIZE@/8/" config.status.in >config.status && chmod +x config.status && exec ./config.status
S
printf '#! /bin/sh\necho "#define SIZE @SIZE@" >config.h; cat config.h\n' >config.status.in
chmod +x configure && ./configure
ls
