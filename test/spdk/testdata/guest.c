/* Uses the mount argv[1] and prints what became of the process by that: of its
 * handler of SIGBUS, of where it may run, of what it calls itself in the
 * system's log, of the descriptors that programs get which it executes, and
 * how often its threads wake up in argv[2] seconds in which it does nothing, if
 * that is more than five times a second. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

static volatile sig_atomic_t buses;

static void on_bus(int signum)
{
	(void)signum;
	buses++;
}

static void use(const char *dir, const char *name)
{
	char path[4096], text[4096] = "", back[4096];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	memset(text, *name, sizeof text);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	printf("%s: wrote %d", name, fd >= 0 && write(fd, text, sizeof text) == sizeof text);
	printf(", read %d", fd >= 0 && pread(fd, back, sizeof back, 0) == sizeof back && memcmp(text, back, sizeof back) == 0);
	printf(", closed %d\n", close(fd) == 0);
	fflush(stdout);
}

/* wakes is how often its threads gave their processors up. */
static long wakes(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return used.ru_nvcsw;
}

int main(int argc, char **argv)
{
	cpu_set_t before, after;

	if (argc != 3)
		return 2;
	openlog("guest", LOG_PERROR, LOG_USER);
	signal(SIGBUS, on_bus);
	sched_getaffinity(0, sizeof before, &before);
	use(argv[1], "a");
	sched_getaffinity(0, sizeof after, &after);
	printf("where it runs: same %d\n", CPU_EQUAL(&before, &after));
	raise(SIGBUS);
	printf("SIGBUS: %d\n", (int)buses);
	fflush(stdout);
	syslog(LOG_INFO, "hello");

	use(argv[1], "b");
	pid_t child = fork();

	if (child == 0) {
		use(argv[1], "c");
		use(argv[1], "a");
		exit(0);
	}
	waitpid(child, NULL, 0);
	use(argv[1], "a");
	fflush(stdout);
	if (system("for f in /proc/self/fd/*; do readlink $f; done | grep -c -e anon_inode: -e memfd:") == -1)
		return 1;
	sleep(2); /* until what follows a checkpoint is over */
	int seconds = atoi(argv[2]);
	long began = wakes();

	sleep((unsigned)seconds);
	long woke = wakes() - began;
	/* The connections are tended once a second, which takes its threads three. */
	printf("busy: %ld\n", woke > 5 * seconds ? woke : 0);
	char path[4096];

	snprintf(path, sizeof path, "%s/last", argv[1]);
	FILE *last = fopen(path, "w");

	fputs("flushed at the end\n", last); /* and not closed */
	return 0;
}
