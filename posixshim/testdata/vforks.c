/* Uses vfork before and after the first use of the mount argv[1]. A child must not load a runtime into its parent's memory, and
 * must not close a file of the parent. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int exit_status(pid_t pid)
{
	int status;

	return waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : -1;
}

int main(int argc, char **argv)
{
	char path[4096];
	volatile int error = 0;
	pid_t pid;

	if (argc != 2)
		return 2;
	snprintf(path, sizeof path, "%s/vforked", argv[1]);
	for (int i = 0; i < 100; i++) {
		pid = vfork();
		if (pid == 0)
			_exit(i);
		if (exit_status(pid) != i)
			return 1;
	}
	pid = vfork();
	if (pid == 0) {
		error = open(path, O_CREAT | O_WRONLY, 0600) < 0 ? errno : 0;
		_exit(5);
	}
	printf("child: %d %s\n", exit_status(pid), strerrorname_np(error));
	int fd = open(path, O_CREAT | O_WRONLY, 0600);

	pid = vfork();
	if (pid == 0) {
		close(fd);
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	printf("exec: %d\n", exit_status(pid));
	printf("parent: %zd\n", write(fd, "x", 1));
	printf("close: %d\n", close(fd));
	return 0;
}
