/* Sends signals that are blocked during calls on a file of argv[1]. Their handlers must run as the application has requested: in
 * the order in which the signals were sent; none lost, even if RLIMIT_SIGPENDING is low; with the mask of sigsuspend; and with a
 * mask that a siglongjmp leaves. Querying an action during system(3) must change nothing, and siginterrupt must apply to handlers
 * that are set later. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MANY = 4000 };

static volatile sig_atomic_t count, disordered;
static sigjmp_buf back;
static pthread_t first;
static int fd;

static void counts(int signum, siginfo_t *info, void *context)
{
	(void)signum;
	(void)context;
	disordered += info->si_value.sival_int != count;
	count++;
}

static void *sends(void *to_thread)
{
	for (int i = 0; i < MANY; i++) {
		union sigval value = {.sival_int = i};

		while ((to_thread != NULL ? pthread_sigqueue(first, SIGRTMIN + 1, value)
					  : sigqueue(getpid(), SIGRTMIN + 1, value)) != 0)
			usleep(50);
	}
	return NULL;
}

static void queue(void *to_thread)
{
	struct sigaction act = {.sa_sigaction = counts, .sa_flags = SA_SIGINFO | SA_RESTART};
	static char data[4096];
	sigset_t one;
	pthread_t t;
	int failed = 0;

	sigaction(SIGRTMIN + 1, &act, NULL);
	sigemptyset(&one);
	sigaddset(&one, SIGRTMIN + 1);
	pthread_sigmask(SIG_BLOCK, &one, NULL);
	count = 0;
	pthread_create(&t, NULL, sends, to_thread);
	pthread_sigmask(SIG_UNBLOCK, &one, NULL);
	for (int i = 0; count < MANY && i < 2000000; i++) {
		errno = 77;
		failed += pwrite(fd, data, sizeof data, 0) != sizeof data || errno != 77;
	}
	pthread_join(t, NULL);
	printf("%d signals, %d disordered, %d calls failed\n", count, disordered, failed);
}

static void ignores(int signum)
{
	(void)signum;
}

static void shows(int signum)
{
	sigset_t now;

	pthread_sigmask(SIG_BLOCK, NULL, &now);
	printf("%d: USR1 %d USR2 %d CHLD %d\n", signum, sigismember(&now, SIGUSR1), sigismember(&now, SIGUSR2),
	       sigismember(&now, SIGCHLD));
}

static void suspend(void)
{
	sigset_t three, all_but;

	signal(SIGUSR1, shows);
	signal(SIGUSR2, shows);
	signal(SIGCHLD, shows);
	sigemptyset(&three);
	sigaddset(&three, SIGUSR1);
	sigaddset(&three, SIGUSR2);
	sigaddset(&three, SIGCHLD);
	pthread_sigmask(SIG_BLOCK, &three, NULL);
	raise(SIGUSR2);
	raise(SIGUSR1);
	raise(SIGCHLD);
	sigfillset(&all_but);
	sigdelset(&all_but, SIGUSR1);
	sigdelset(&all_but, SIGUSR2);
	sigdelset(&all_but, SIGCHLD);
	sigsuspend(&all_but);
	pthread_sigmask(SIG_UNBLOCK, &three, NULL);
	/* The library uses these signals itself. */
	for (int i = 0; i < 3; i++) {
		static const int needed[] = {SIGPIPE, SIGSEGV, SIGBUS};

		signal(needed[i], shows);
		sigaddset(&three, needed[i]);
		pthread_sigmask(SIG_BLOCK, &three, NULL);
		raise(needed[i]);
		sigemptyset(&all_but);
		sigaddset(&all_but, SIGUSR2);
		sigsuspend(&all_but);
		pthread_sigmask(SIG_UNBLOCK, &three, NULL);
		signal(needed[i], SIG_DFL);
	}
}

/* SIGPROF is sent to threads, as profilers do. Hardly any signal may be lost while another one is blocked until the end of a
 * call. */

static sem_t profiled;
static _Atomic int calls; /* number of calls that have returned */

static void profiles(int signum)
{
	(void)signum;
	sem_post(&profiled);
}

static void *profiler(void *lost)
{
	bool missed;

	for (int i = 0; i < 40; i++) {
		pthread_kill(first, SIGUSR1);
		usleep(100);
		pthread_kill(first, SIGPROF);
		/* A signal that has not arrived at the end of the next call is lost. */
		for (int since = calls; (missed = sem_trywait(&profiled) != 0) && calls < since + 3;)
			usleep(100);
		*(int *)lost += missed;
	}
	count = 1;
	return NULL;
}

static void profile(void)
{
	struct sigaction act = {.sa_handler = profiles, .sa_flags = SA_RESTART}, nothing = {.sa_handler = ignores};
	static char data[4 << 20];
	pthread_t t;
	int lost = 0;

	sem_init(&profiled, 0, 0);
	sigaction(SIGPROF, &act, NULL);
	sigaction(SIGUSR1, &nothing, NULL);
	count = 0;
	pthread_create(&t, NULL, profiler, &lost);
	for (; count == 0; calls++)
		pwrite(fd, data, sizeof data, 0);
	pthread_join(t, NULL);
	printf("more than a few are lost: %d\n", lost > 4);
}

/* Many signals arrive during one call. */

static _Atomic bool sent;

static void *bursts(void *unused)
{
	for (int i = 0; i < 300; i++) {
		for (int signum = SIGRTMIN; signum <= SIGRTMAX; signum++)
			pthread_kill(first, signum);
		usleep(1000);
	}
	sent = true;
	return unused;
}

static void writes(int signum)
{
	static char data[4096];

	disordered += pwrite(fd, data, sizeof data, signum * 4096) != sizeof data;
	count++;
}

static void burst(void)
{
	struct sigaction act = {.sa_handler = writes, .sa_flags = SA_RESTART};
	int many = 300 * (SIGRTMAX - SIGRTMIN + 1);
	static char data[1 << 20];
	pthread_t t;

	for (int signum = SIGRTMIN; signum <= SIGRTMAX; signum++)
		sigaction(signum, &act, NULL);
	count = 0;
	pthread_create(&t, NULL, bursts, NULL);
	/* A signal that has not arrived long after all were sent is lost. */
	for (int i = 0; count < many && i < 1000; i += sent)
		pwrite(fd, data, sizeof data, 0);
	pthread_join(t, NULL);
	printf("in bursts %d of %d, %d failed\n", count, many, disordered);
}

static void jumps(int signum)
{
	(void)signum;
	siglongjmp(back, 1);
}

static void jump(void)
{
	sigset_t now;
	volatile int blocked = 0;

	signal(SIGALRM, jumps);
	if (sigsetjmp(back, 0) == 0)
		for (alarm(1);;)
			pwrite(fd, "x", 1, 0);
	pthread_sigmask(SIG_BLOCK, NULL, &now);
	for (int signum = 1; signum < NSIG; signum++)
		blocked += sigismember(&now, signum) == 1;
	printf("%d blocked\n", blocked);
}

/* asks calls sigaction while a command of system(3) runs. The command prints a line and waits until it may end. */
static int runs[2], may_end[2];

static void *asks(void *unused)
{
	struct sigaction act;
	char c;

	read(runs[0], &c, 1);
	sigaction(SIGINT, NULL, &act);
	printf("ignored %d\n", act.sa_handler == SIG_IGN);
	close(may_end[1]);
	return unused;
}

/* interrupts installs handlers by signal(2), whose flags siginterrupt has changed. */
static void interrupts(int first)
{
	for (int flag = first; flag < first + 3; flag++) {
		struct sigaction act;

		siginterrupt(SIGURG, flag % 2);
		signal(SIGURG, shows);
		sigaction(SIGURG, NULL, &act);
		printf("flags %x, mask %d\n", (unsigned)act.sa_flags & ~0x04000000u, sigismember(&act.sa_mask, SIGURG));
		signal(SIGURG, SIG_DFL);
	}
}

int main(int argc, char **argv)
{
	struct rlimit few = {100, 100};
	char name[4096];
	pthread_t t;

	if (argc != 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	first = pthread_self();
	snprintf(name, sizeof name, "%s/file", argv[1]);
	interrupts(1);
	fd = open(name, O_RDWR | O_CREAT, 0600);
	interrupts(0);
	suspend();
	queue(NULL);
	queue(&first);
	burst();
	profile();
	setrlimit(RLIMIT_SIGPENDING, &few);
	queue(NULL);
	signal(SIGINT, shows);
	pipe(runs);
	pipe(may_end);
	pthread_create(&t, NULL, asks, NULL);
	snprintf(name, sizeof name, "exec %d>&-; echo >&%d; read x <&%d", may_end[1], runs[1], may_end[0]);
	system(name);
	pthread_join(t, NULL);
	raise(SIGINT);
	jump();
	return 0;
}
