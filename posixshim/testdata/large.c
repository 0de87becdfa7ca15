/* Prints the size of this program's file and the last argv[1] bytes of the file. If more than 64 MiB of memory are resident,
 * prints that size, too. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char end[100] = "", line[200];
	int fd = open("/proc/self/exe", O_RDONLY);
	off_t n = lseek(fd, 0, SEEK_END);
	size_t length = argc == 2 ? (size_t)atoi(argv[1]) : 0;
	FILE *f = fopen("/proc/self/smaps_rollup", "r");

	while (f != NULL && fgets(line, sizeof line, f) != NULL)
		if (strncmp(line, "Rss:", 4) == 0 && atoi(line + 4) > 64 << 10)
			printf("resident: %s", line);
	if (length >= sizeof end || pread(fd, end, length, n - (off_t)length) != (ssize_t)length) {
		perror("reading the program");
		return 1;
	}
	printf("%lld %s\n", (long long)n, end);
	return 0;
}
