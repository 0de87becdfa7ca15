/* Reads and writes files in argv[1] with partly bad buffers: two pages are writable, one is read-only, and one is not mapped. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096 };

static int fd;

static void result(const char *what, long start, long n, long r)
{
	struct stat st;
	int why = errno;

	fstat(fd, &st);
	printf("%s %ld+%ld: %ld %s, size %ld, offset %ld\n", what, start, n, r, r < 0 ? strerrorname_np(why) : "", (long)st.st_size,
	       (long)lseek(fd, 0, SEEK_CUR));
}

static void fresh(const char *path, long size)
{
	close(fd);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (ftruncate(fd, size) != 0)
		perror("ftruncate");
}

static void transfer(const char *path, char *m)
{
	static const struct {
		long start, n;
	} parts[] = {
		{0, PAGE}, {0, 2 * PAGE}, {0, 3 * PAGE}, {0, 4 * PAGE}, {100, 4 * PAGE}, {PAGE - 1, 2}, {2 * PAGE - 1, 2}, {2 * PAGE - 1, 1},
		{2 * PAGE, 10}, {2 * PAGE, PAGE + 10}, {3 * PAGE - 1, 2}, {3 * PAGE, 1}, {3 * PAGE, 0}, {3 * PAGE, 100000}, {5 * PAGE / 2, 1 << 20},
	};

	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		long start = parts[i].start, n = parts[i].n;
		struct iovec iov[3] = {{m, 10}, {m + start, (size_t)n}, {m, 10}};

		fresh(path, 0);
		result("write", start, n, write(fd, m + start, (size_t)n));
		fresh(path, 0);
		result("pwrite", start, n, pwrite(fd, m + start, (size_t)n, 0));
		fresh(path, 0);
		result("writev", start, n, writev(fd, iov, 3));
		fresh(path, 6 * PAGE);
		result("read", start, n, read(fd, m + start, (size_t)n));
		fresh(path, 6 * PAGE);
		result("pread", start, n, pread(fd, m + start, (size_t)n, 5));
		fresh(path, 6 * PAGE);
		result("readv", start, n, readv(fd, iov, 3));
		/* A read does not touch pages of the buffer after the end of the file's data. */
		fresh(path, 50);
		result("short read", start, n, read(fd, m + start, (size_t)n));
		fresh(path, 0);
		result("empty read", start, n, read(fd, m + start, (size_t)n));
	}
	fresh(path, 100);
	result("pointer 8", 0, 5, writev(fd, &(struct iovec){(void *)8, 5}, 1));
	result("high pointer", 0, 5, write(fd, (void *)0xffff800000000000, 5));
	result("high pointer", 0, 5, pread(fd, (void *)0xffff800000000000, 5, 0));
	result("no address", 0, 5, write(fd, (void *)0x0fff800000000000, 5));
	result("text", 0, 5, pread(fd, (void *)transfer, 5, 0));
	result("good", 0, 5, pwrite(fd, "after", 5, 0));
}

int main(int argc, char **argv)
{
	char path[4096];

	if (argc != 2)
		return 2;
	snprintf(path, sizeof path, "%s/file", argv[1]);
	char *m = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memset(m, 'm', 4 * PAGE);
	mprotect(m + 2 * PAGE, PAGE, PROT_READ);
	mprotect(m + 3 * PAGE, PAGE, PROT_NONE);
	fd = open("/dev/null", O_RDONLY);
	transfer(path, m);
	return 0;
}
