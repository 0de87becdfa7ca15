/* Copies its input to its output. If that fails, prints the errno on stderr and exits with 1. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
	char buf[4096];
	ssize_t n;

	while ((n = read(0, buf, sizeof buf)) > 0)
		if (write(1, buf, (size_t)n) != n) {
			fprintf(stderr, "write: %s\n", strerror(errno));
			return 1;
		}
	if (n < 0)
		fprintf(stderr, "read: %s\n", strerror(errno));
	return n < 0;
}
