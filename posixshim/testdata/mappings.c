/* Maps files in the directory argv[1], and prints the contents of the mappings. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir;

#define P(expr) print(#expr, (long)(expr))

static long print(const char *what, long value)
{
	int e = errno;

	printf("%s = %ld%s%s\n", what, value, value == -1 ? " " : "", value == -1 ? strerrorname_np(e) : "");
	return value;
}

static int opened(const char *name, int flags)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	return open(path, flags, 0600);
}

#define PAGE 4096
#define SIZE (3 << 20)

static void writable(void)
{
	int fd = opened("shared", O_RDWR | O_CREAT | O_TRUNC);
	char buf[16] = "";

	P(ftruncate(fd, SIZE));
	char *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	char *n = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, (2 << 20));

	P(m != MAP_FAILED && n != MAP_FAILED);
	strcpy(m + 100, "at the start");
	strcpy(m + (2 << 20), "two mebibytes on");
	P(strcmp(n, "two mebibytes on"));
	P(msync(m, SIZE, MS_SYNC));
	P(pread(fd, buf, 13, 100));
	printf("%s\n", buf);
	P(pwrite(fd, "AT", 2, 100));
	P(memcmp(m + 100, "AT the start", 13));
	strcpy(m + 5000, "kept by munmap");
	P(munmap(m, PAGE));
	P(munmap(m + 2 * PAGE, SIZE - 2 * PAGE));
	strcpy(m + 5000, "the page between");
	P(munmap(m + PAGE, PAGE));
	P(pread(fd, buf, 16, 5000));
	printf("%.16s\n", buf);
	P(close(fd)); /* the mapping persists */
	P(strcmp(n, "two mebibytes on"));
	P(munmap(n, 2 * PAGE));
	fd = opened("shared", O_RDONLY);
	P(pread(fd, buf, 16, (2 << 20)));
	printf("%.16s\n", buf);
	P(lseek(fd, 0, SEEK_END));
	P(close(fd));
}

static void growing(void)
{
	int fd = opened("growing", O_RDWR | O_CREAT | O_TRUNC);
	char buf[16] = "";

	P(write(fd, "short", 5));
	char *m = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	strcpy(m + 5, " and beyond the end");
	P(msync(m, PAGE, MS_ASYNC));
	P(lseek(fd, 0, SEEK_END));
	P(ftruncate(fd, 3 * PAGE));
	strcpy(m + 2 * PAGE, "third page");
	P(pwrite(fd, "fourth", 6, 3 * PAGE));
	P(memcmp(m + 3 * PAGE, "fourth", 6));
	m = mremap(m, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
	P(m != MAP_FAILED);
	strcpy(m + PAGE, "second page");
	P(madvise(m, 4 * PAGE, MADV_DONTNEED));
	P(strcmp(m + PAGE, "second page"));
	P(munmap(m, 8 * PAGE));
	P(pread(fd, buf, 11, PAGE));
	printf("%s\n", buf);
	P(pread(fd, buf, 11, 2 * PAGE));
	printf("%s\n", buf);
	P(lseek(fd, 0, SEEK_END));
	P(ftruncate(fd, 10));
	P(close(fd));
}

static void private(void)
{
	int fd = opened("private", O_RDWR | O_CREAT | O_TRUNC), ro = opened("private", O_RDONLY), wo = opened("private", O_WRONLY);
	char buf[16] = "";

	P(write(fd, "original", 8));
	char *m = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, ro, 0);

	P(close(ro));
	m[0] = 'O';
	P(memcmp(m, "Original", 9));
	P(msync(m, PAGE, MS_SYNC));
	P(pread(fd, buf, 8, 0));
	printf("%s\n", buf);
	P(madvise(m, PAGE, MADV_DONTNEED));
	P(memcmp(m, "original", 9));
	P(munmap(m, PAGE));
	ro = opened("private", O_RDONLY);
	char *s = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, ro, 0);

	P(pwrite(fd, "changed!", 8, 0));
	P(memcmp(s, "changed!", 8));
	P(munmap(s, PAGE));
	P(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ro, 0) == MAP_FAILED && errno == EACCES);
	P(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, wo, 0) == MAP_FAILED && errno == EACCES);
	P(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, wo, 0) == MAP_FAILED && errno == EACCES);
	P(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, ro, 0) == MAP_FAILED && errno == EINVAL);
	P(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, ro, 5) == MAP_FAILED && errno == EINVAL);
	int d = open(dir, O_RDONLY);

	P(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, d, 0) == MAP_FAILED && errno == ENODEV);
	P(close(fd) | close(ro) | close(wo) | close(d));
}

static void forked(void)
{
	int fd = opened("forked", O_RDWR | O_CREAT | O_TRUNC), status;
	char buf[16] = "";

	P(ftruncate(fd, PAGE));
	char *m = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	pid_t pid = fork();

	if (pid == 0) {
		strcpy(m, "the child's");
		munmap(m, PAGE);
		_exit(0);
	}
	P(waitpid(pid, &status, 0) == pid && status == 0);
	P(strcmp(m, "the child's"));
	P(munmap(m, PAGE));
	P(pread(fd, buf, 12, 0));
	printf("%s\n", buf);
	P(close(fd));
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	dir = argv[1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	writable();
	growing();
	private();
	forked();

	int fd = opened("at-exit", O_RDWR | O_CREAT | O_TRUNC);

	P(ftruncate(fd, 20));
	char *m = mmap(NULL, 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	strcpy(m, "saved by the end\n");
	return 0;
}
