/* Tries to execute a program that does not exist, and then uses its files in argv[1]. One of them was unlinked and one renamed.
 * Then it closes them and executes a shell, whose children use the mount, too. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char *none[] = {"none", NULL}, *sh[] = {"sh", "-c", "cat a; cp a c; echo more >>c; (cat c)", NULL}, text[16] = "";

	if (argc != 2 || chdir(argv[1]) != 0)
		return 2;
	int a = open("a", O_RDWR | O_CREAT | O_CLOEXEC, 0600), b = open("b", O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0600);

	ftruncate(b, 4096);
	char *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, b, 0);

	strcpy(m, "mapped");
	int gone = open("gone", O_RDWR | O_CREAT | O_CLOEXEC, 0600), moved = open("before", O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	unlink("gone");
	rename("before", "after");
	write(gone, "gone", 4);
	write(moved, "moved", 5);
	write(a, "one\n", 4);
	for (int i = 0; i < 2; i++) {
		execv("/etc/passwd", none);
		printf("%s\n", strerror(errno));
	}
	printf("%zd %s\n", pread(gone, text, 4, 0), text);
	printf("%zd %s\n", pread(moved, text, 5, 0), text);
	close(gone);
	close(moved);
	memset(text, 0, sizeof text);
	write(a, "two\n", 4);
	printf("%zd\n", pread(a, text, 15, 0));
	printf("%s%zd\n", text, write(b, "end", 3));
	printf("%zd %s\n", pread(b, text, 7, 0), text);
	strcpy(m, "again!");
	printf("%d %d\n", msync(m, 4096, MS_SYNC), (int)lseek(b, 0, SEEK_END));
	fflush(stdout);
	strcpy(m, "closed");
	close(a);
	close(b);
	munmap(m, 4096);
	execv("/bin/sh", sh);
	return 1;
}
