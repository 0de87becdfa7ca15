/* Ends by _exit with a mapping of argv[1] changed and argv[2] still open. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int mapped = open(argv[argc - 2], O_RDWR | O_CREAT, 0600);
	int written = open(argv[argc - 1], O_WRONLY | O_CREAT, 0600);

	if (ftruncate(mapped, 7) != 0 || write(written, "written", 7) != 7)
		_exit(1);
	char *p = mmap(NULL, 7, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);

	if (p == MAP_FAILED)
		_exit(2);
	memcpy(p, "mapped\n", 7);
	_exit(0);
}
