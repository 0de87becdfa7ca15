/* Prints the links in /proc/self/fd to files below argv[1], with DIR in place of argv[1]. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *dir;

static void show(const char *what, int fd)
{
	char name[64], link[4096];

	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof name, "%s/%d", i == 0 ? "/proc/self/fd" : "/dev/fd", fd);
		ssize_t n = readlink(name, link, sizeof link - 1);

		link[n < 0 ? 0 : n] = '\0';
		printf("%s: %s%s\n", what, n > 0 ? "DIR" : "", n < 0 ? strerror(errno) : link + strlen(dir));
		n = readlinkat(AT_FDCWD, name, link, 3);
		printf("%zd %.*s\n", n, n < 0 ? 0 : 1, link);
	}
}

int main(int argc, char **argv)
{
	char link[64];
	ssize_t n;

	if (argc != 2 || chdir(dir = argv[1]) != 0)
		return 2;
	mkdir("d", 0700);
	symlink("d", "l");
	symlink("f", "d/s");
	int f = open("d/f", O_CREAT | O_RDWR, 0600);

	show("file", f);
	show("through links", open("l/s", O_RDONLY));
	show("a link itself", open("d/s", O_PATH | O_NOFOLLOW));
	show("directory", open("l", O_RDONLY));
	show("working directory", open(".", O_RDONLY));
	show("duplicate", dup(f));
	unlink("d/f");
	show("gone", f);
	if (dup2(f, 0) == 0) {
		n = readlink("/dev/stdin", link, sizeof link);
		printf("%.*s\n", (int)n, link);
	}
	show("standard input", 0);
	return 0;
}
