/* Ignores signals, uses argv[1], and executes itself. Prints the ignored signals after a failed exec, and in the executed
 * program. Fault signals need not be ignored there, and a shell does not ignore SIGCHLD. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const int signals[] = {SIGPROF, SIGPIPE, SIGURG, SIGUSR1, SIGCHLD, SIGSEGV, SIGBUS, SIGFPE};

static void show(const char *when)
{
	struct sigaction act;

	printf("%s:", when);
	for (unsigned i = 0; i < sizeof signals / sizeof *signals - (when[0] == 's' ? 4 : when[0] == 'e' ? 3 : 0); i++)
		printf(" %d", sigaction(signals[i], NULL, &act) == 0 && act.sa_handler == SIG_IGN);
	puts("");
	fflush(stdout);
}

/* spawn executes this program in children, by each function for it. */
static void spawn(char *program)
{
	char *again[] = {program, "spawned", NULL}, command[4096];
	char *const none[] = {NULL};
	pid_t pid;

	if (posix_spawn(&pid, program, NULL, NULL, again, none) == 0)
		waitpid(pid, NULL, 0);
	if (posix_spawnp(&pid, program, NULL, NULL, again, none) == 0)
		waitpid(pid, NULL, 0);
	snprintf(command, sizeof command, "env -i %s spawned", program);
	if (system(command) != 0)
		puts("system failed");
	pclose(popen(command, "w"));
}

int main(int argc, char **argv)
{
	char *again[] = {argv[0], NULL};

	if (argc > 1 && argv[1][0] == 's') {
		show("spawned");
		raise(SIGPROF);
		return 0;
	}
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
	raise(SIGSEGV);
	show("not executed");
	spawn(argv[0]);
	execv("/proc/self/exe", again);
	return 1;
}
