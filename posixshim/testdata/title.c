/* Overwrites the memory of its arguments and its environment, like programs that change their title. With argv[2] it copies the
 * environment first. Then it uses argv[1], also in a child. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void use(const char *name, const char *what)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/%s", name, what);
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	printf("%s: %zd\n", what, write(fd, "text", 4));
	close(fd);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char name[4096], *end = argv[argc - 1];
	char *none[] = {NULL};

	if (argc < 2)
		return 2;
	strcpy(name, argv[1]);
	for (char **e = environ; *e != NULL; e++) {
		end = *e + strlen(*e);
		if (argc > 2)
			*e = strdup(*e);
	}
	if (argc > 2) {
		/* Copies the array of pointers, too. */
		char **copy = malloc(1000 * sizeof *copy);
		int n = 0;

		for (char **e = environ; *e != NULL; e++)
			copy[n++] = *e;
		copy[n] = NULL;
		environ = copy;
	} else {
		environ = none;
	}
	memset(argv[0], 'x', (size_t)(end - argv[0]));
	use(name, "a");
	if (fork() == 0) {
		use(name, "b");
		_exit(0);
	}
	wait(NULL);
	use(name, "a");
	return 0;
}
