/* Threads of the runtime open descriptors while the application chooses descriptor numbers for its files. Neither may get a
 * number of the other. Children connect to this process, which accepts the connections. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int result = 3; /* the descriptor for output; standard error may be closed */

static void check(int is, int want, const char *what)
{
	if (is == want)
		return;
	dprintf(result, "%s is %d and not %d: %s\n", what, is, want, strerror(errno));
	exit(1);
}

/* connects starts one child after another. Each child makes calls on a file of the parent. */
static void connects(const char *path)
{
	for (;;) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pid_t pid = fork();

		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(access(path, F_OK) != 0);
		}
		int status;

		if (waitpid(pid, &status, 0) != pid || status != 0)
			exit(1);
	}
}

int main(int argc, char **argv)
{
	char path[4096];
	struct stat file, null;

	if (argc != 3)
		return 2;
	check(dup2(STDOUT_FILENO, result), result, "dup2 to the result");
	snprintf(path, sizeof path, "%s/output", argv[1]);
	int out = open(path, O_WRONLY | O_CREAT, 0644);
	pid_t pid = fork();

	if (pid == 0)
		connects(path);
	fstat(out, &file);
	stat("/dev/null", &null);
	for (int i = atoi(argv[2]); i > 0; i--) {
		struct stat st;

		/* Redirects standard error like dash. */
		int saved = fcntl(STDERR_FILENO, F_DUPFD, 10);

		check(close(STDERR_FILENO), 0, "close of standard error");
		check(dup2(out, STDERR_FILENO), STDERR_FILENO, "dup2 of a file of the mount");
		check(fstat(STDERR_FILENO, &st) == 0 && st.st_ino == file.st_ino, 1, "standard error as the file");
		check(dup2(saved, STDERR_FILENO), STDERR_FILENO, "dup2 back");
		check(close(saved), 0, "close of the saved one");

		/* Redirects standard input like a daemon. */
		check(close(STDIN_FILENO), 0, "close of standard input");
		check(open("/dev/null", O_RDONLY), STDIN_FILENO, "the next descriptor");
		check(fstat(STDIN_FILENO, &st) == 0 && st.st_rdev == null.st_rdev, 1, "standard input as /dev/null");
	}
	int status;

	check(waitpid(pid, &status, WNOHANG), 0, "the process that connects");
	kill(pid, SIGTERM);
	waitpid(pid, &status, 0);
	dprintf(result, "done\n");
	return 0;
}
