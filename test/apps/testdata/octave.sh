#!/bin/sh
# Octave with its output in the directory $1: its libraries write with C++ streams, which libc's write(2) is not asked for.
set -eu
cd "$1"
octave-cli --no-gui --eval 'disp(pi); printf("%d\n", 1:2000); x = magic(4)' >log 2>err
octave-cli --eval 'fprintf(stderr, "told\n"); disp("appended"); error("failed")' >>log 2>>err || echo "failed, as it should"
tail -n 4 log
cat err
cat >work.m <<'END'
a = reshape(1:12, 3, 4);
save("-text", "a.txt", "a");
save("-binary", "a.bin", "a");
dlmwrite("a.csv", a);
f = fopen("lines", "w");
for i = 1:1000
	fprintf(f, "line %d\n", i);
end
fclose(f);
b = load("a.txt"); c = load("a.bin"); d = dlmread("a.csv");
disp(isequal(a, b.a, c.a, d));
f = fopen("lines");
n = 0;
while ischar(fgetl(f))
	n++;
end
fclose(f);
disp(n);
END
octave-cli work.m | tee out
octave-cli <work.m
