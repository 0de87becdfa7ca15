#!/bin/sh
# Builds a small C project in the directory $1, with two compilers at a time.
set -e
cd "$1"
mkdir -p src
for i in 1 2 3 4 5 6; do
	echo "int f$i(void) { return $i; }" >src/f$i.c
done
cat >src/main.c <<'C'
#include <stdio.h>
#include "fs.h"
int main(void) { printf("%d\n", f1() + f2() + f3() + f4() + f5() + f6()); }
C
cat >Makefile <<'M'
OBJECTS := $(patsubst src/%.c,obj/%.o,$(wildcard src/*.c))

program: $(OBJECTS)
	cc -o $@ $^ 2>link.log
	ls -l $@ | cut -c1-10 >listed.log

obj/%.o: src/%.c src/fs.h | obj
	cc -pipe -c -o $@ $< -MMD >$@.log 2>&1

src/fs.h:
	for i in 1 2 3 4 5 6; do echo "int f$$i(void);"; done >$@.new
	mv $@.new $@

obj:
	mkdir $@

.PHONY: clean
clean:
	rm -rf obj program
-include obj/*.d
M
make -s -j2 >make.log 2>&1 || cat make.log
make -s -j2 && echo "nothing left to do"
cat listed.log
mkdir -p "$2" && cp program "$2/program" && "$2/program"
touch src/f1.c
make -j2 | grep -c 'cc '
make -s clean
ls
