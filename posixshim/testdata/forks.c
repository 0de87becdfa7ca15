/* A child that was forked after the mount was used: open files of the parent
 * are refused, what is acknowledged can be read, and nothing can be written
 * while the parent writes; exec gives a fresh start. Prints what happens. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char path[4096];
	int status;

	if (argc == 3) { /* executed by the child */
		printf("executed: %s\n", access(argv[2], F_OK) == 0 ? "there" : strerrorname_np(errno));
		return 0;
	}
	snprintf(path, sizeof path, "%s/forked", argv[1]);
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	printf("parent: %zd\n", write(fd, "parent", 6));
	fflush(stdout);
	if (fork() == 0) {
		int n = (int)write(fd, "child", 5);
		const char *why = n < 0 ? strerrorname_np(errno) : "";
		int null = open("/dev/null", O_WRONLY);

		printf("child: %d %s, outside %zd, close %d\n", n, why, write(null, "x", 1), close(fd));
		snprintf(path, sizeof path, "%s/forked", argv[1]);
		fd = open(path, O_RDONLY);
		printf("child reads: %zd\n", read(fd, path, 6));
		snprintf(path, sizeof path, "%s/sub", argv[1]);
		printf("child writes: %s\n", mkdir(path, 0700) < 0 ? strerrorname_np(errno) : "done");
		fflush(stdout);
		_exit(3);
	}
	printf("wait: %d\n", wait(&status) > 0);
	printf("exit: %d\n", WEXITSTATUS(status));
	printf("parent: %zd\n", write(fd, " again", 6));
	printf("close: %d\n", close(fd));
	fflush(stdout);
	if (fork() == 0) {
		execl("/proc/self/exe", argv[0], argv[1], path, (char *)NULL);
		_exit(1);
	}
	wait(&status);
	return WEXITSTATUS(status);
}
