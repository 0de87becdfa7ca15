/* Uses fallocate, holes, and calls that copy between files, in the directory argv[1]. Prints the results, which the test compares
 * with a run in a local directory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

static long size(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? st.st_size : -1;
}

static long allocated(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? st.st_blocks * 512 : -1;
}

#define M (1 << 20)

static void reserve(void)
{
	int fd = opened("reserve", O_RDWR | O_CREAT | O_TRUNC), ro = opened("reserve", O_RDONLY);
	char buf[10] = "x";

	P(fallocate(fd, 0, 0, M));
	P(size(fd));
	P(allocated(fd) >= M);
	P(pread(fd, buf, 1, M / 2));
	P(buf[0]);
	P(fallocate(fd, FALLOC_FL_KEEP_SIZE, M, M));
	P(size(fd));
	P(allocated(fd) >= 2 * M);
	P(posix_fallocate(fd, 2 * M, 100));
	P(size(fd));
	P(posix_fallocate(fd, 0, 100));
	P(size(fd));
	P(posix_fallocate(fd, -1, 100) == EINVAL);
	P(posix_fallocate(fd, 0, 0) == EINVAL);
	P(posix_fallocate(ro, 0, 1) == EBADF);
	P(fallocate(fd, 0, 0, 0));
	P(fallocate(fd, 0, -1, 5));
	P(fallocate(ro, 0, 0, 5));
	P(fallocate(fd, 0x4000, 0, 5));
	P(fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 5));
	P(pwrite(fd, "written", 7, M - 3));
	P(pread(fd, buf, 8, M - 4));
	P(memcmp(buf, "\0written", 8));
	P(close(fd) | close(ro));
}

static char data[M];

static void holes(void)
{
	int fd = opened("holes", O_RDWR | O_CREAT | O_TRUNC);
	char buf[4] = "abc";

	memset(data, 'd', sizeof data);
	P(write(fd, data, sizeof data) == sizeof data);
	P(pwrite(fd, data, sizeof data, 4 * M) == sizeof data);
	P(fsync(fd));
	P(size(fd));
	P(allocated(fd) < 4 * M);
	P(lseek(fd, 0, SEEK_DATA));
	P(lseek(fd, 0, SEEK_HOLE));
	P(lseek(fd, M, SEEK_DATA));
	P(lseek(fd, 4 * M, SEEK_HOLE));
	P(lseek(fd, 5 * M, SEEK_DATA));
	P(lseek(fd, 5 * M, SEEK_HOLE));
	P(lseek(fd, -1, SEEK_HOLE));
	P(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * M + 100, M / 2));
	P(pread(fd, buf, 3, 4 * M + 98));
	P(memcmp(buf, "dd", 3));
	P(pread(fd, buf, 3, 4 * M + 99 + M / 2));
	P(memcmp(buf, "\0dd", 3));
	P(size(fd));
	P(fallocate(fd, FALLOC_FL_ZERO_RANGE, 5 * M - 50, 100));
	P(size(fd));
	P(pread(fd, buf, 2, 5 * M - 51));
	P(memcmp(buf, "d\0", 2));
	P(fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 6 * M, 100));
	P(size(fd));
	P(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 100 * (long)M));
	P(lseek(fd, 0, SEEK_DATA));
	P(size(fd));
	P(close(fd));
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	dir = argv[1];
	reserve();
	holes();
	return 0;
}
