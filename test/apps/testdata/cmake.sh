#!/bin/sh
# CMake with its output in the directory $1, and a project that it configures, builds and installs there.
set -eu
cd "$1"
cmake -E echo "an echo" >log 2>err
cmake -E echo_append "and more" >>log
cmake -E cat log; echo
mkdir source
cat >source/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.13)
project(small C)
configure_file(small.h.in small.h)
add_library(twice STATIC twice.c)
add_executable(small small.c)
target_include_directories(small PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
target_link_libraries(small twice)
install(TARGETS small DESTINATION bin)
message(STATUS "configured")
END
echo '#define GREETING "@PROJECT_NAME@"' >source/small.h.in
echo 'int twice(int i) { return 2 * i; }' >source/twice.c
cat >source/small.c <<'END'
#include <stdio.h>
#include "small.h"
int twice(int i);
int main(void) { return printf("%s %d\n", GREETING, twice(21)) < 0; }
END
cmake -S source -B build -DCMAKE_INSTALL_PREFIX="$1/installed" >configured 2>&1 || { cat configured; exit 1; }
grep -c configured configured
cmake --build build >built 2>&1 || { cat built; exit 1; }
cmake --install build >>built
# Executed elsewhere: in the mount that takes a view.
elsewhere=$(mktemp)
cp installed/bin/small "$elsewhere"
chmod +x "$elsewhere"
"$elsewhere"
rm "$elsewhere"
cmake -E tar cf all.tar source
cmake -E tar tf all.tar | sort
cmake -E sha256sum source/twice.c
