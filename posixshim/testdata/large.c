/* Says how large the program itself is, and the argv[1] bytes that it ends with. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char end[100] = "";
	int fd = open("/proc/self/exe", O_RDONLY);
	off_t n = lseek(fd, 0, SEEK_END);
	size_t length = argc == 2 ? (size_t)atoi(argv[1]) : 0;

	if (length >= sizeof end || pread(fd, end, length, n - (off_t)length) != (ssize_t)length)
		return 1;
	printf("%lld %s\n", (long long)n, end);
	return 0;
}
