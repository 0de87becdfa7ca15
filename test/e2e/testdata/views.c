/* Files of the directory argv[2] mapped for reading; argv[1] says what is looked at, argv[3], if any, what the name of a
 * mapped file has in /proc/self/maps; argv[4] how often. What is not as it has to be is told, and the exit status is 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1L << 20)
#define PAGE 4096L
#define SIZE (8 * MIB)
#define LARGE (16 * MIB) /* it takes a while to read page by page */

static const char *dir, *where;
static int wrong;
static long times = 100;

#define T(expr) check(expr, #expr, __LINE__)

static void check(bool is, const char *what, int line)
{
	if (is)
		return;
	printf("line %d: %s: %s\n", line, what, strerror(errno));
	fflush(stdout);
	wrong = 1;
}

static const char *path(const char *name)
{
	static char buf[2][4096];
	static int i;

	snprintf(buf[i ^= 1], sizeof buf[0], "%s/%s", dir, name);
	return buf[i];
}

/* word is what the file of a seed has at a page. */
static uint64_t word(unsigned seed, long page)
{
	return ((uint64_t)page + 1) * 0x9e3779b97f4a7c15u ^ seed;
}

static void fill(char *buf, long at, long n, unsigned seed)
{
	for (long i = 0; i < n; i += 8) {
		uint64_t w = word(seed, (at + i) / PAGE);

		memcpy(buf + i, &w, 8);
	}
}

static void make(const char *name, long size, unsigned seed)
{
	char *buf = malloc(MIB);
	int fd = open(path(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);

	T(fd >= 0);
	for (long at = 0; at < size; at += MIB) {
		fill(buf, at, MIB, seed);
		T(write(fd, buf, MIB) == MIB);
	}
	T(close(fd) == 0);
	free(buf);
}

static bool same(const char *m, long at, long n, unsigned seed)
{
	char want[PAGE];

	for (long i = 0; i < n; i += PAGE) {
		fill(want, at + i, PAGE, seed);
		if (memcmp(m + i, want, PAGE) != 0)
			return false;
	}
	return true;
}

/* kernels says whether what is mapped at m is a file of the kernel's. */
static bool kernels(const char *m)
{
	char line[4096], start[32];
	FILE *f = fopen("/proc/self/maps", "r");
	bool is = false;

	snprintf(start, sizeof start, "%lx-", (unsigned long)m);
	while (where != NULL && fgets(line, sizeof line, f) != NULL)
		if (strncmp(line, start, strlen(start)) == 0)
			is = strstr(line, where) != NULL;
	fclose(f);
	return is || where == NULL;
}

static char *map(const char *name, long size, int prot, int flags)
{
	int fd = open(path(name), O_RDONLY);
	char *m = mmap(NULL, (size_t)size, prot, flags, fd, 0);

	T(fd >= 0 && m != MAP_FAILED);
	T(kernels(m));
	T(close(fd) == 0); /* the mapping stays */
	return m;
}

/* What is done to the file shows in the mapping. */
static void changes(void)
{
	char buf[PAGE];

	make("f", SIZE, 1);
	char *m = map("f", SIZE + MIB, PROT_READ, MAP_SHARED);

	T(same(m, 0, SIZE, 1));
	int fd = open(path("f"), O_RDWR);

	for (int i = 0; i < 50; i++) {
		long at = i * 37 * PAGE + i * 100;

		snprintf(buf, sizeof buf, "written %d", i);
		T(pwrite(fd, buf, 20, at) == 20);
		T(memcmp(m + at, buf, 20) == 0);
	}
	T(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * MIB, MIB) == 0);
	T(m[2 * MIB] == 0 && m[3 * MIB - 1] == 0 && same(m + 3 * MIB, 3 * MIB, PAGE, 1));
	T(ftruncate(fd, SIZE - MIB) == 0 && ftruncate(fd, SIZE) == 0);
	T(m[SIZE - MIB] == 0 && m[SIZE - 1] == 0);
	T(lseek(fd, 0, SEEK_END) == SIZE && write(fd, "behind", 7) == 7);
	T(strcmp(m + SIZE, "behind") == 0);
	T(close(fd) == 0);
	fd = open(path("f"), O_WRONLY | O_APPEND);
	T(write(fd, "appended", 9) == 9 && strcmp(m + SIZE + 7, "appended") == 0);
	T(close(fd) == 0);
	T(msync(m, SIZE, MS_SYNC) == 0 && munmap(m, SIZE + MIB) == 0);
	/* Another mapping shows it, too. */
	m = map("f", SIZE, PROT_READ, MAP_PRIVATE);
	T(memcmp(m, "written 0", 10) == 0 && m[2 * MIB] == 0);
	T(munmap(m, SIZE) == 0 && unlink(path("f")) == 0);
}

/* A file that has lost its name is what it was. */
static void names(void)
{
	for (int i = 0; i < 4; i++) {
		make("f", SIZE, 2);
		char *m = map("f", SIZE, PROT_READ, i % 2 ? MAP_SHARED : MAP_PRIVATE);

		T(same(m, 0, PAGE, 2));
		if (i < 2) {
			T(unlink(path("f")) == 0);
		} else {
			make("g", SIZE, 3);
			T(rename(path("g"), path("f")) == 0);
		}
		for (unsigned j = 0; j < 3; j++) { /* of what the file had nothing is used for these */
			make("other", SIZE, 10 + j);
			T(same(m + 2 * j * MIB, 2 * j * MIB, MIB / 2, 2));
		}
		T(same(m, 0, SIZE, 2));
		T(munmap(m, SIZE) == 0);
		unlink(path("f"));
		unlink(path("other"));
	}
	make("f", SIZE, 4);
	char *m = map("f", SIZE, PROT_READ, MAP_SHARED);

	T(rename(path("f"), path("elsewhere")) == 0 && same(m, 0, SIZE, 4));
	int fd = open(path("elsewhere"), O_WRONLY);

	T(pwrite(fd, "changed", 7, 5 * PAGE) == 7 && memcmp(m + 5 * PAGE, "changed", 7) == 0 && close(fd) == 0);
	T(munmap(m, SIZE) == 0 && unlink(path("elsewhere")) == 0);
}

static unsigned long available(void)
{
	struct statvfs st;

	T(statvfs(dir, &st) == 0);
	return st.f_bavail * st.f_frsize;
}

/* All that can be done to a mapping, and the file lasts as long as there is some of it. */
static void memory(void)
{
	int status;

	make("f", SIZE, 5);
	unsigned long before = available() + SIZE;

	char *m = map("f", SIZE, PROT_READ, MAP_SHARED);
	char *p = map("f", SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);

	strcpy(p + 5 * PAGE, "mine");
	T(same(m, 0, SIZE, 5) && strcmp(p + 5 * PAGE, "mine") == 0);
	T(mprotect(m, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
	T(madvise(m, SIZE, MADV_SEQUENTIAL) == 0 && madvise(m, SIZE, MADV_WILLNEED) == 0 && madvise(m, SIZE, MADV_DONTNEED) == 0);
	T(msync(p, SIZE, MS_SYNC) == 0 && msync(m, SIZE, MS_ASYNC) == 0);
	if (fork() == 0) {
		T(same(m, 0, SIZE, 5) && strcmp(p + 5 * PAGE, "mine") == 0 && munmap(m, SIZE) == 0);
		_exit(wrong);
	}
	T(wait(&status) > 0 && status == 0);
	T(munmap(m + 2 * MIB, MIB) == 0); /* a hole in the middle */
	T(unlink(path("f")) == 0);
	char *over = mmap(m, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0);

	T(over == m && same(m + MIB, MIB, MIB, 5) && same(m + 3 * MIB, 3 * MIB, 5 * MIB, 5));
	char *moved = mremap(m + 3 * MIB, 5 * MIB, 2 * MIB, MREMAP_MAYMOVE);

	T(moved == m + 3 * MIB && same(moved, 3 * MIB, 2 * MIB, 5));
	/* It is there. Of the space of a local file system others take and give some, too. */
	T(where == NULL || available() + SIZE <= before + MIB);
	T(munmap(p, SIZE) == 0 && munmap(m, 4 * MIB) == 0);
	T(same(m + 4 * MIB, 4 * MIB, MIB, 5));
	T(munmap(m + 4 * MIB, MIB) == 0);
	while (where != NULL && available() + MIB < before)
		usleep(1000); /* the kernel tells of a last munmap when that has returned */
	/* Who maps it next finds the pages there. */
	make("f", SIZE, 12);
	for (int i = 0; i < 2; i++) {
		unsigned char there[SIZE / PAGE] = {0};

		m = map("f", SIZE, PROT_READ, i ? MAP_PRIVATE : MAP_SHARED);
		T(mincore(m, SIZE, there) == 0 && (i == 0 || memchr(there, 0, sizeof there) == NULL));
		T(same(m, 0, SIZE, 12) && munmap(m, SIZE) == 0);
	}
	T(unlink(path("f")) == 0);
}

/* What is mapped can be written. */
static void sources(void)
{
	make("f", SIZE, 6);
	int fd = open(path("f"), O_RDWR), other = open(path("g"), O_RDWR | O_CREAT | O_TRUNC, 0600);

	char *m = map("f", SIZE, PROT_READ, MAP_SHARED);

	for (int i = 0; i < 24; i++) { /* no page is there: the change before has taken them */
		T(pwrite(fd, m + 4 * MIB, MIB, i % 4 * MIB) == MIB);
		T(pwrite(other, m + i * PAGE, MIB, 0) == MIB);
	}
	T(kernels(m) && munmap(m, SIZE) == 0);
	char *buf = malloc(MIB), *want = malloc(MIB);

	fill(want, 4 * MIB, MIB, 6);
	for (int i = 0; i < 5; i++)
		T(pread(fd, buf, MIB, i * MIB) == MIB && memcmp(buf, want, MIB) == 0);
	free(buf);
	free(want);
	T(close(fd) == 0 && close(other) == 0 && unlink(path("f")) == 0 && unlink(path("g")) == 0);
}

/* busy reads a mapping slowly while this process changes other files, and takes the name of the mapped one. The
 * server finds that something has changed `times` times meanwhile. */
static void busy(void)
{
	const long size = LARGE, pages = size / PAGE;
	_Atomic long *changes = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status = 0;

	make("f", size, 7);
	make("watched", MIB, 8);
	char *m = map("f", size, PROT_READ, MAP_SHARED);

	T(madvise(m, (size_t)size, MADV_RANDOM) == 0);
	pid_t reader = fork();

	if (reader == 0) {
		for (long i = 0; i < pages; i++) {
			/* The last page waits for all changes: nobody makes more for who counts them once it is read. */
			while (*changes < (i + 1) * times / pages)
				usleep(100);
			T(same(m + i * PAGE, i * PAGE, PAGE, 7));
		}
		_exit(wrong);
	}
	pid_t asker = fork();

	if (asker == 0) {
		char there[4096];
		struct stat now, was = {0};

		snprintf(there, sizeof there, "%s/self/watched", getenv("NVMECR_EXPORT"));
		for (int fd = open(where ? there : path("watched"), O_RDONLY); *changes < times; was = now) {
			T(fstat(fd, &now) == 0);
			*changes += now.st_mtim.tv_nsec != was.st_mtim.tv_nsec;
		}
		_exit(wrong);
	}
	for (long i = 0; waitpid(reader, &status, WNOHANG) == 0; i++) {
		char name[32];
		int fd = open(path("watched"), O_WRONLY);

		T(pwrite(fd, &i, sizeof i, 0) == sizeof i && close(fd) == 0);
		snprintf(name, sizeof name, "new.%ld", i % 8);
		unlink(path(name));
		make(name, i % 10 == 0 ? MIB : 0, (unsigned)i);
		if (i == 50)
			T(unlink(path("f")) == 0);
	}
	T(status == 0);
	T(waitpid(asker, &status, 0) == asker && status == 0);
}

/* Rank 0 of a job of two makes what `others` maps, and changes it until its input ends. */
static void rank0(void)
{
	const long size = LARGE;
	struct pollfd input = {.fd = 0, .events = POLLIN};
	char *buf = malloc(MIB);
	unsigned seed = 20;

	make("f", size, 1);
	T(write(1, "made", 4) == 4 && read(0, buf, 1) == 1); /* now it is mapped */
	int fd = open(path("f"), O_RDWR);

	for (int i = 0; poll(&input, 1, 0) == 0; i++) {
		long at = rand_r(&seed) % (size / PAGE) * PAGE, n = rand_r(&seed) % (MIB / PAGE) * PAGE;

		n = at + n > size ? size - at : n;
		fill(buf, at, n, 2);
		T(pwrite(fd, buf, n, at) == n);
		if (i % 16 == 0)
			T(fsync(fd) == 0);
		if (i % 64 == 0) {
			T(close(fd) == 0);
			fd = open(path("f"), O_RDWR);
		}
	}
	T(close(fd) == 0);
	fd = open(path("f"), O_RDWR);
	for (long at = 0; at < size; at += MIB) {
		fill(buf, at, MIB, 2);
		T(pwrite(fd, buf, MIB, at) == MIB);
	}
	T(close(fd) == 0);
	free(buf);
}

/* Another rank changes the file: what is mapped are its old bytes and its new ones, and later, in another mapping, the new ones. */
static void others(void)
{
	const long size = LARGE, pages = size / PAGE;
	int to[2], from[2], status;
	char made[4];

	T(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
	pid_t writer = fork();

	if (writer == 0) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		setenv("PMI_RANK", "0", 1);
		setenv("PMI_SIZE", "2", 1);
		execl("/proc/self/exe", "views", "rank0", dir, NULL);
		_exit(127);
	}
	T(close(to[0]) == 0 && read(from[0], made, 4) == 4);
	char *m = map("f", size, PROT_READ, MAP_SHARED);

	T(madvise(m, (size_t)size, MADV_RANDOM) == 0 && write(to[1], "", 1) == 1);
	for (long i = 0; i < pages; i++) {
		long at = i * 7919 % pages * PAGE; /* each of them once */
		T(same(m + at, at, PAGE, 1) || same(m + at, at, PAGE, 2));
	}
	T(close(to[1]) == 0 && waitpid(writer, &status, 0) == writer && status == 0);
	char *second = map("f", size, PROT_READ, MAP_PRIVATE);

	T(same(second, 0, size, 2) && munmap(second, (size_t)size) == 0 && munmap(m, (size_t)size) == 0);
}

/* The pages of a mapping that nobody has read go with the server, and nothing else. */
static void killed(void)
{
	make("f", SIZE, 9);
	make("small", MIB / 2 + MIB / 2, 9);
	T(truncate(path("small"), MIB / 2) == 0);
	char *m = map("f", SIZE, PROT_READ, MAP_SHARED);
	int fd = open(path("small"), O_RDONLY), status, c;
	char *copy = mmap(NULL, MIB / 2, PROT_READ, MAP_SHARED, fd, 0);

	T(same(m, 0, PAGE, 9));
	puts("go");
	fflush(stdout);
	c = getchar();
	T(c == '\n' && same(m, 0, PAGE, 9) && same(copy, 0, MIB / 2, 9));
	if (fork() == 0)
		_exit(same(m + 4 * MIB, 4 * MIB, PAGE, 9));
	T(wait(&status) > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	/* From here on it is a copy. In a tree another server may have taken its place. */
	where = strcmp(getenv("NVMECR_VIEW"), "job") == 0 ? NULL : "memfd";
	char *second = map("f", SIZE, PROT_READ, MAP_SHARED);
	T(same(second, 0, SIZE, 9) && munmap(second, SIZE) == 0 && munmap(m, SIZE) == 0);
	m = map("f", SIZE, PROT_READ, MAP_SHARED);
	T(same(m, 0, SIZE, 9));
}

/* held prints the number of a process that keeps a mapping until it is killed, and has no part in the run otherwise. */
static void held(void)
{
	make("f", SIZE, 11);
	char *m = map("f", SIZE, PROT_READ, MAP_SHARED);
	pid_t pid = fork();

	if (pid != 0) {
		printf("%d\n", pid);
		return;
	}
	T(setsid() > 0 && m[0] == m[0]);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*look)(void);
	} looks[] = {{"changes", changes}, {"names", names}, {"memory", memory}, {"sources", sources},
		     {"busy", busy}, {"others", others}, {"rank0", rank0}, {"killed", killed}, {"held", held}};

	dir = argv[2];
	where = argc > 3 ? argv[3] : NULL;
	times = argc > 4 ? atol(argv[4]) : times;
	for (size_t i = 0; i < sizeof looks / sizeof *looks; i++)
		if (strcmp(argv[1], looks[i].name) == 0)
			looks[i].look();
	return wrong;
}
