/* Installs a signal handler that makes the process's first call on the mount. Arguments: the mount, the function that installs
 * the handler, and the thread that calls it, "main" or "thread". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern sighandler_t __sysv_signal(int signum, sighandler_t handler);

static char name[4096];
static volatile sig_atomic_t fd = -1;

static void on_signal(int signum)
{
	(void)signum;
	if (fd < 0)
		fd = open(name, O_RDWR | O_CREAT, 0600);
}

static void install(const char *way)
{
	struct sigaction act = {.sa_handler = on_signal};

	if (strcmp(way, "sigaction") == 0)
		sigaction(SIGUSR1, &act, NULL);
	if (strcmp(way, "signal") == 0)
		signal(SIGUSR1, on_signal);
	if (strcmp(way, "sysv_signal") == 0)
		__sysv_signal(SIGUSR1, on_signal);
	if (strcmp(way, "sigset") == 0)
		sigset(SIGUSR1, on_signal);
}

static void *installs(void *way)
{
	install(way);
	return NULL;
}

#define EXPECT(what)                         \
	do {                                 \
		if (!(what)) {               \
			puts("not " #what);  \
			return 1;            \
		}                            \
	} while (0)

int main(int argc, char **argv)
{
	struct sigaction now;
	pthread_t thread;

	if (argc != 4)
		return 2;
	snprintf(name, sizeof name, "%s/%s", argv[1], argv[2]);
	if (strcmp(argv[3], "thread") == 0) {
		pthread_create(&thread, NULL, installs, argv[2]);
		pthread_join(thread, NULL);
	} else {
		install(argv[2]);
	}
	raise(SIGUSR1);
	EXPECT(fd >= 0);
	install(argv[2]);
	EXPECT(sigaction(SIGUSR1, NULL, &now) == 0);
	EXPECT(now.sa_handler == on_signal);
	raise(SIGUSR1);
	EXPECT(pwrite(fd, "x", 1, 0) == 1);
	EXPECT(close(fd) == 0);
	puts("ok");
	return 0;
}
