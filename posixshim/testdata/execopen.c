/* Tries to execute a program that does not exist, and then uses its files in argv[1]. One of them was unlinked and one renamed.
 * Then it executes a shell, whose children use the mount, too. The files are open until then, with FD_CLOEXEC. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int opened(const char *name)
{
	return open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

int main(int argc, char **argv)
{
	char *none[] = {"none", NULL}, *sh[] = {"sh", "-c", "cat a; cp a c; echo more >>c; (cat c); cat after; ls", NULL}, text[32] = "";

	if (argc != 2 || chdir(argv[1]) != 0)
		return 2;
	int a = opened("a"), gone = opened("gone"), moved = opened("before");

	unlink("gone");
	rename("before", "after");
	for (int i = 0; i < 3; i++) {
		write(a, "line\n", 5);
		write(gone, "gone\n", 5);
		write(moved, "moved\n", 6);
		execv("/etc/passwd", none);
		printf("%s\n", strerror(errno));
	}
	printf("%zd %s", pread(gone, text, 15, 0), text);
	fflush(stdout);
	execv("/bin/sh", sh);
	return 1;
}
