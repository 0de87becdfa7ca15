/* A process ends while its child has a file under argv[1] open. Some time later the child makes its only call, close. Prints the
 * result of close. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void child(int fd, int how)
{
	usleep(20000);
	errno = 0;
	if (how == 0)
		close(fd);
	else
		dup2(STDERR_FILENO, fd); /* unlike close, dup2 does not report the error of the close */
	dprintf(STDOUT_FILENO, "%s\n", strerror(errno));
	_exit(0);
}

int main(int argc, char **argv)
{
	for (int how = 0; how < 2; how++) {
		char path[4096];
		pid_t middle = fork();

		if (middle == 0) {
			snprintf(path, sizeof path, "%s/f%d", argv[argc - 1], how);
			int fd = open(path, O_RDWR | O_CREAT, 0600);

			if (fd < 0 || write(fd, "x", 1) != 1)
				_exit(1);
			if (fork() == 0)
				child(fd, how);
			_exit(0);
		}
		waitpid(middle, NULL, 0);
	}
	return 0;
}
