/* Raises fault signals, by faults and by raise. Handlers are installed before the first file of argv[2] is used, afterwards, or
 * both. Prints what the handlers see, which is the same on every file system. argv[1] is the signal, or the way in which the
 * process ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE};
static const char *const names[] = {"SEGV", "BUS", "FPE"};

static __thread sigjmp_buf back;
static char name[4096];
static char *nothing; /* a page that cannot be accessed */
static char *beyond;  /* a page after the end of its file */
static volatile int zero;
static bool alone = true; /* the process has one thread, which gets the signals that are sent to the process */

static void on_info(int signum, siginfo_t *info, void *context)
{
	sigset_t mask;

	(void)context;
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	printf("  signal %d, sent %d, there %d, blocks itself %d, USR1 %d, USR2 %d\n", signum, info->si_code <= 0,
	       info->si_code > 0 && (info->si_addr == nothing || info->si_addr == beyond), sigismember(&mask, signum),
	       sigismember(&mask, SIGUSR1), sigismember(&mask, SIGUSR2));
	siglongjmp(back, 1);
}

static void on_plain(int signum)
{
	printf("  plain %d\n", signum);
	siglongjmp(back, 1);
}

static void on_return(int signum)
{
	printf("  return %d\n", signum);
}

static void fault(int signum)
{
	if (signum == SIGSEGV)
		*(volatile char *)nothing = 1;
	if (signum == SIGBUS)
		*(volatile char *)beyond = 1;
	if (signum == SIGFPE)
		zero = 7 / zero;
}

static void installs(int flags)
{
	struct sigaction act = {.sa_sigaction = on_info, .sa_flags = SA_SIGINFO | flags};

	sigemptyset(&act.sa_mask);
	sigaddset(&act.sa_mask, SIGUSR2);
	for (int i = 0; i < 3; i++)
		sigaction(signals[i], &act, NULL);
}

static void show(void)
{
	struct sigaction now;

	for (int i = 0; i < 3; i++) {
		sigaction(signals[i], NULL, &now);
		printf("%s: %s, flags %x, masks USR2 %d\n", names[i],
		       now.sa_handler == SIG_DFL	  ? "default"
		       : now.sa_handler == SIG_IGN	  ? "ignored"
		       : now.sa_sigaction == on_info	  ? "info"
		       : now.sa_handler == on_plain	  ? "plain"
						  : "somebody's",
		       now.sa_flags & ~(SA_ONSTACK | 0x04000000), sigismember(&now.sa_mask, SIGUSR2));
	}
}

static void each(void)
{
	for (volatile int round = 0; round < 3; round++)
		for (volatile int i = 0; i < 3; i++) {
			printf("%s %d\n", names[i], round);
			if (sigsetjmp(back, 1) == 0)
				fault(signals[i]);
			if (sigsetjmp(back, 1) == 0)
				raise(signals[i]);
			if (alone && sigsetjmp(back, 1) == 0)
				kill(getpid(), signals[i]);
		}
}

/* Calls with bad buffers fail with EFAULT, whatever handlers are installed. */
static void calls(void)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	ssize_t n = write(fd, nothing, 10);

	printf("write %zd %d\n", n, errno);
	n = write(fd, "good", 4);
	printf("good %zd\n", n);
	n = pread(fd, nothing, 2, 0);
	printf("pread %zd %d\n", n, errno);
	n = write(fd, beyond, 10);
	printf("write beyond %zd %d\n", n, errno);
	close(fd);
}

static void *thread(void *unused)
{
	each();
	calls();
	return unused;
}

static void ways(void)
{
	struct sigaction old;

	for (volatile int i = 0; i < 3; i++) {
		signal(signals[i], on_plain);
		if (sigsetjmp(back, 1) == 0)
			fault(signals[i]);
		printf("signal %d\n", signal(signals[i], on_return) == on_plain);
		raise(signals[i]);
		sysv_signal(signals[i], on_return);
		raise(signals[i]);
		sigaction(signals[i], NULL, &old);
		printf("sysv flags %x, default %d\n", old.sa_flags & ~(SA_ONSTACK | 0x04000000), old.sa_handler == SIG_DFL);
		signal(signals[i], SIG_IGN);
		raise(signals[i]);
		printf("was ignored %d\n", signal(signals[i], on_plain) == SIG_IGN);
	}
}

/* ending ends a child by a signal. The parent prints which one. */
static void ending(const char *how)
{
	int signum = signals[how[1] - '0'];

	if (how[2] == 'i')
		signal(signum, SIG_IGN);
	if (how[2] == 'o') {
		struct sigaction once = {.sa_handler = on_return, .sa_flags = SA_RESETHAND};

		sigaction(signum, &once, NULL);
	}
	calls();
	fflush(stdout);
	if (how[3] == 'f')
		fault(signum);
	else
		raise(signum);
	puts("goes on");
}

int main(int argc, char **argv)
{
	pthread_t t;

	if (argc != 3)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	snprintf(name, sizeof name, "%s/file", argv[2]);
	nothing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	beyond = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_create("empty", 0), 0);
	if (argv[1][0] == 'e') {
		ending(argv[1]);
		return 0;
	}
	bool both = strcmp(argv[1], "both") == 0;

	if (both || strcmp(argv[1], "before") == 0)
		installs(0);
	calls();
	show();
	if (both || strcmp(argv[1], "after") == 0)
		installs(SA_NODEFER | SA_RESTART);
	calls();
	show();
	each();
	calls();
	alone = false;
	pthread_create(&t, NULL, thread, NULL);
	pthread_join(t, NULL);
	alone = true;
	show();
	ways();
	calls();
	fflush(stdout);
	pid_t child = fork();

	if (child == 0) {
		installs(0);
		each();
		calls();
		fflush(stdout);
		_exit(0);
	}
	int status;

	waitpid(child, &status, 0);
	printf("child %d\n", status);
	calls();
	return 0;
}
