/* Prints the resident memory in KiB before and after writing a file under argv[1]. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static long resident(void)
{
	char line[256];
	long kib = -1;
	FILE *f = fopen("/proc/self/status", "r");

	while (f != NULL && fgets(line, sizeof line, f) != NULL)
		if (strncmp(line, "VmRSS:", 6) == 0)
			sscanf(line + 6, "%ld", &kib);
	if (f != NULL)
		fclose(f);
	return kib;
}

int main(int argc, char **argv)
{
	char path[4096], block[65536] = "";
	long before = resident();

	if (argc != 2)
		return 2;
	snprintf(path, sizeof path, "%s/idle", argv[1]);
	int fd = open(path, O_WRONLY | O_CREAT, 0600);

	for (int i = 0; i < 256; i++)
		if (write(fd, block, sizeof block) != sizeof block)
			return 1;
	if (close(fd) != 0)
		return 1;
	printf("%ld %ld\n", before, resident());
	return 0;
}
