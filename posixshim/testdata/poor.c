/* Uses files under argv[1] with too little of something: argv[2] says of what,
 * argv[3] how much of it there is. Prints what each call came to. Whatever that
 * is, the process has to live, and what was written has to be what is read. */
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

/* came says what a call came to: 0 or an error. */
static int came(const char *what, int good)
{
	printf("%s: %s\n", what, good ? "ok" : strerrorname_np(errno));
	fflush(stdout);
	return good;
}

/* status reads a number of /proc/self/status, in KiB. */
static rlim_t status(const char *name)
{
	char line[256];
	unsigned long n = 0;
	FILE *f = fopen("/proc/self/status", "r");

	while (f != NULL && fgets(line, sizeof line, f) != NULL)
		if (strncmp(line, name, strlen(name)) == 0)
			sscanf(line + strlen(name), ": %lu", &n);
	if (f != NULL)
		fclose(f);
	return n;
}

/* use does what programs do, and accepts every answer but a wrong one. */
static void use(int fd)
{
	struct stat st;
	long done = 0;

	for (int i = 0; i < 64; i++) {
		memset(block, 'a' + i % 26, BLOCK);
		done += pwrite(fd, block, BLOCK, (off_t)i * BLOCK) == BLOCK;
	}
	came("pwrite", done == 64);
	for (int i = 0; i < 64; i++) {
		memset(block, 'a' + i % 26, BLOCK);
		if (pread(fd, back, BLOCK, (off_t)i * BLOCK) == BLOCK && memcmp(block, back, BLOCK) != 0)
			wrong = 1;
	}
	came("stat", stat(in("x"), &st) == 0 && st.st_size == 64 * BLOCK);
	came("mkdir", mkdir(in("d"), 0700) == 0);
	int made = 0;

	for (int i = 0; i < 2000; i++) {
		char name[64];

		snprintf(name, sizeof name, "d/%d", i);
		int f = open(in(name), O_WRONLY | O_CREAT, 0600);

		made += f >= 0 && write(f, "x", 1) == 1;
		if (f >= 0)
			close(f);
	}
	came("2000 files", made == 2000);
	DIR *d = opendir(in("d"));

	if (came("opendir", d != NULL)) {
		int n = 0;

		while (readdir(d) != NULL)
			n++;
		if (n != made + 2)
			wrong = 1;
		closedir(d);
	}
	FILE *f = fopen(in("x"), "r");

	if (came("fopen", f != NULL))
		fclose(f);
	came("fsync", fsync(fd) == 0);
}

/* memory fills all that there is with memory of malloc. */
static void memory(void)
{
	for (size_t n = 64 << 20; n >= 16;)
		if (malloc(n) == NULL)
			n /= 2;
}

/* numbers uses every call that makes a descriptor, or needs one, until there
 * is none, and after some have been closed. */
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
	came("scandir", scandir(in("."), &(struct dirent **){NULL}, NULL, NULL) >= 0);
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

	/* What the tests were started with does not count. */
	close_range(3, ~0u, 0);
	getrlimit(RLIMIT_NOFILE, &before);
	if (strcmp(argv[2], "descriptors before") == 0) {
		/* None, then a few, then enough. */
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
		/* A limit that is far away: it is what tells of those to come. */
		if (*argv[2] != 'd' || argv[2][1] == 'a')
			limit(*argv[2] == 's' ? RLIMIT_AS : RLIMIT_DATA, 16l << 30);
		fd = open(in("x"), O_RDWR | O_CREAT, 0600);
		came("first", fd >= 0);
		if (strcmp(argv[2], "descriptors") == 0) {
			limit(RLIMIT_NOFILE, much);
			numbers(fd);
		} else {
			limit(*argv[2] == 's' ? RLIMIT_AS : RLIMIT_DATA, (status(*argv[2] == 's' ? "VmSize" : "VmData") << 10) + (much << 20));
			memory();
			use(fd);
		}
	}
	printf("%s\n", wrong ? "wrong" : "right");
	return wrong;
}
