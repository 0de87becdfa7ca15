/* Executes argv[1] in a child of vfork, with the following arguments. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int status;

	if (argc < 2)
		return 2;
	pid_t pid = vfork();

	if (pid == 0) {
		execv(argv[1], argv + 1);
		_exit(127);
	}
	return waitpid(pid, &status, 0) != pid || status != 0;
}
