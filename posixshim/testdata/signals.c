/* Writes under argv[1] in two threads while signals arrive. The handlers are installed before and after the first write, without
 * SA_ONSTACK. They need a large stack and make file calls. Prints "ok". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t alarms, profs, wrong;
static int null, ours;
static sigjmp_buf back;
static char handlers[4096];

static void on_alarm(int signum)
{
	volatile char deep[100 << 10];
	int saved = errno;

	(void)signum;
	deep[0] = deep[sizeof deep - 1] = 1;
	alarms++;
	if (write(null, "x", 1) != 1)
		wrong = 1;
	/* Only a few handlers use files. Otherwise a handler would still run when the next alarm arrives, and the threads would make
	 * no progress. */
	if (alarms % 20 != 0) {
		errno = saved;
		return;
	}
	if (pwrite(ours, "s", 1, 0) != 1)
		wrong = 1;
	int fd = open(handlers, O_WRONLY | O_CREAT, 0600);

	if (fd < 0 || close(fd) != 0)
		wrong = 3;
	errno = saved;
}

static void on_prof(int signum)
{
	(void)signum;
	profs++;
}

static void on_segv(int signum)
{
	(void)signum;
	siglongjmp(back, 1);
}

static void *writer(void *path)
{
	char buf[4096];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	long bad = fd < 0;

	memset(buf, 'w', sizeof buf);
	for (int i = 0; i < 3000; i++) {
		if (pwrite(fd, buf, sizeof buf, (i % 100) * 4096L) != sizeof buf)
			bad++;
		if (pread(fd, buf, sizeof buf, (i % 100) * 4096L) != sizeof buf || buf[7] != 'w')
			bad++;
	}
	close(fd);
	return (void *)bad;
}

int main(int argc, char **argv)
{
	char a[4096], b[4096], c[4096];
	struct itimerval often = {{0, 200}, {0, 200}}, sometimes = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
	struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, other, broken;
	pthread_t t;
	void *bad;

	if (argc != 2)
		return 2;
	null = open("/dev/null", O_WRONLY);
	signal(SIGPROF, on_prof);
	signal(SIGUSR1, on_prof);
	snprintf(a, sizeof a, "%s/a", argv[1]);
	snprintf(b, sizeof b, "%s/b", argv[1]);
	snprintf(c, sizeof c, "%s/c", argv[1]);
	snprintf(handlers, sizeof handlers, "%s/handlers", argv[1]);
	signal(SIGPIPE, SIG_IGN);
	ours = open(c, O_RDWR | O_CREAT, 0600);
	/* An executed program also ignores the signal. */
	if (sigaction(SIGPIPE, NULL, &broken) != 0 || broken.sa_handler != SIG_IGN)
		wrong = 3;
	/* sigaction returns the application's action, whatever the library has installed. */
	if (sigaction(SIGUSR1, NULL, &other) != 0 || other.sa_handler != on_prof || (other.sa_flags & SA_ONSTACK))
		wrong = 2;
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	setitimer(ITIMER_PROF, &sometimes, NULL);
	pthread_create(&t, NULL, writer, a);
	long bad2 = (long)writer(b);

	pthread_join(t, &bad);
	setitimer(ITIMER_REAL, &off, NULL);
	setitimer(ITIMER_PROF, &off, NULL);
	signal(SIGSEGV, on_segv);
	if (sigsetjmp(back, 1) == 0)
		*(volatile int *)16 = 1;
	if (write(ours, "after", 5) != 5)
		wrong = 1;
	if (bad != NULL || bad2 != 0 || wrong || alarms == 0) {
		printf("bad %ld %ld, wrong %d, %d alarms\n", (long)bad, bad2, wrong, alarms);
		return 1;
	}
	fprintf(stderr, "%d alarms, %d profiling\n", alarms, profs);
	printf("ok\n");
	return 0;
}
