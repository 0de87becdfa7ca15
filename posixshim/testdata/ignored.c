/* Ignores signals, uses argv[1], and executes itself: prints which are ignored
 * after an exec that failed, and in the program. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static const int signals[] = {SIGPROF, SIGPIPE, SIGURG, SIGCHLD, SIGUSR1};

static void show(const char *when)
{
	struct sigaction act;

	printf("%s:", when);
	for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
		printf(" %d", sigaction(signals[i], NULL, &act) == 0 && act.sa_handler == SIG_IGN);
	puts("");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char *again[] = {argv[0], NULL};

	if (argc == 1) {
		show("executed");
		raise(SIGPROF);
		return 0;
	}
	for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
		signal(signals[i], SIG_IGN);
	close(open(argv[1], O_WRONLY | O_CREAT, 0600));
	execv("/etc/passwd", again);
	raise(SIGPROF);
	show("not executed");
	execv("/proc/self/exe", again);
	return 1;
}
