/* Creates the files that its arguments name, each with five bytes, and prints the results. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		int fd = open(argv[i], O_RDWR | O_CREAT, 0600);

		if (fd < 0)
			printf("%s: %s\n", argv[i], strerror(errno));
		else
			printf("%s: %d\n", argv[i], (int)write(fd, "hello", 5));
	}
	return 0;
}
