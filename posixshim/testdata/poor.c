/* Uses files under argv[1] while a resource is scarce. argv[2] is the resource, and argv[3] its limit. Prints the result of each
 * call. The process must not be killed, whatever fails, and all data that was written must be readable. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK (1 << 20)

static const char *dir;
static char block[BLOCK], back[BLOCK];
static int wrong;

static char *in(const char *name)
{
	static char path[4096];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static void limit(int resource, rlim_t n)
{
	struct rlimit l;

	getrlimit(resource, &l);
	l.rlim_cur = n < l.rlim_max ? n : l.rlim_max;
	if (setrlimit(resource, &l) != 0) {
		perror("setrlimit");
		exit(2);
	}
}

/* came prints the result of a call: success or an errno. */
static int came(const char *what, int good)
{
	printf("%s: %s\n", what, good ? "ok" : strerrorname_np(errno));
	fflush(stdout);
	return good;
}

/* numbers makes every call that returns or needs a descriptor, first until none is free, and again after some were closed. */
static void numbers(int fd)
{
	int taken[4096], n = 0;

	while (n < 4096 && (taken[n] = open("/dev/null", O_RDONLY)) >= 0)
		n++;
	came("open", open(in("y"), O_RDWR | O_CREAT, 0600) >= 0);
	came("dup", dup(fd) >= 0);
	came("F_DUPFD", fcntl(fd, F_DUPFD, 0) >= 0);
	came("dup2 to a new number", dup2(fd, 4000) >= 0);
	came("dup2 over another", n == 0 || (dup2(fd, taken[0]) >= 0 && pwrite(taken[0], "x", 1, 0) == 1));
	came("opendir", opendir(in(".")) != NULL);
	came("fopen", fopen(in("y"), "w") != NULL);
	came("mkstemp", mkstemp(in("XXXXXX")) >= 0);
	came("stat", stat(in("."), &(struct stat){0}) == 0);
	came("mkdir", mkdir(in("dir"), 0700) == 0);
	came("y", access(in("y"), F_OK) == 0);
	void *m = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);

	printf("mmap: %s\n", m != MAP_FAILED || errno == EMFILE ? "ok" : strerrorname_np(errno));
	came("pwrite", pwrite(fd, block, BLOCK, 0) == BLOCK && pread(fd, back, BLOCK, 0) == BLOCK);
	came("fsync", fsync(fd) == 0);
	for (int i = n - 10; i > 0 && i < n; i++)
		close(taken[i]);
	came("open again", open(in("y"), O_RDWR | O_CREAT, 0600) >= 0);
	came("mmap again", mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	dir = argv[1];
	rlim_t much = strtoul(argv[3], NULL, 0);
	struct rlimit before;
	int fd;

	/* Descriptors inherited from the test do not count. */
	close_range(3, ~0u, 0);
	getrlimit(RLIMIT_NOFILE, &before);
	if (strcmp(argv[2], "descriptors before") == 0) {
		/* No free descriptor, then a few, then enough. */
		limit(RLIMIT_NOFILE, much);
		fd = open(in("x"), O_RDWR | O_CREAT, 0600);
		came("first", fd >= 0 || errno == EMFILE);
		limit(RLIMIT_NOFILE, before.rlim_cur);
		if (fd < 0)
			fd = open(in("x"), O_RDWR | O_CREAT, 0600);
		came("then", fd >= 0 && write(fd, "x", 1) == 1);
	} else if (strcmp(argv[2], "space before") == 0 || strcmp(argv[2], "data before") == 0) {
		int resource = *argv[2] == 's' ? RLIMIT_AS : RLIMIT_DATA;

		getrlimit(resource, &before);
		limit(resource, much << 20);
		fd = open(in("x"), O_RDWR | O_CREAT, 0600);
		came("first", fd >= 0 || errno == ENOMEM);
		limit(resource, before.rlim_cur);
		if (fd < 0)
			fd = open(in("x"), O_RDWR | O_CREAT, 0600);
		came("then", fd >= 0 && write(fd, "x", 1) == 1);
	} else {
		fd = open(in("x"), O_RDWR | O_CREAT, 0600);
		came("first", fd >= 0);
		limit(RLIMIT_NOFILE, much);
		numbers(fd);
	}
	printf("%s\n", wrong ? "wrong" : "right");
	return wrong;
}
