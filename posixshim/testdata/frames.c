/* Checks the stack and the floating-point state of signal handlers in a process that uses a file of argv[1]. Handlers run on the
 * stack that they interrupt, unless they have SA_ONSTACK, and with the initial floating-point state. Some handlers switch
 * coroutines. */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fenv.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static int fd;
static char data[64 << 10];
static volatile sig_atomic_t count;

/* ---- the stack of a handler ---- */

static char *own; /* an alternate stack */
static volatile uintptr_t from, to;

static const char *where(const void *p)
{
	uintptr_t at = (uintptr_t)p;

	if (own != NULL && at >= (uintptr_t)own && at < (uintptr_t)own + (64 << 10))
		return "its alternate stack";
	return at >= from && at < to ? "the thread's stack" : "another stack";
}

static void tells(int signum, siginfo_t *info, void *context)
{
	char here;
	stack_t now;
	ucontext_t *c = context;
	int status = write(fd, data, 100) != 100;

	sigaltstack(NULL, &now);
	printf("%d on %s, of %s; stack flags %d; from %d; write %d\n", signum, where(&here),
#if defined(__x86_64__)
	       where((void *)c->uc_mcontext.gregs[REG_RSP]),
#else
	       where((void *)c->uc_mcontext.sp),
#endif
	       own != NULL ? now.ss_flags : 0, info->si_pid == getpid(), status);
	if (signum == SIGUSR1)
		raise(SIGUSR2);
}

static void stacks(void)
{
	pthread_attr_t attr;
	void *low;
	size_t size;
	stack_t stack = {.ss_size = 64 << 10}, now;

	pthread_getattr_np(pthread_self(), &attr);
	pthread_attr_getstack(&attr, &low, &size);
	from = (uintptr_t)low;
	to = from + size;
	/* For handlers with SA_ONSTACK, a thread without an alternate stack may have the library's. */
	for (int with = 0; with < 4; with += with == 0 ? 2 : 1) {
		struct sigaction act = {.sa_sigaction = tells, .sa_flags = SA_SIGINFO | (with & 1 ? SA_ONSTACK : 0)};

		if (with == 2) {
			own = stack.ss_sp = malloc(stack.ss_size);
			printf("set: %d\n", sigaltstack(&stack, NULL));
		}
		sigaction(SIGUSR1, &act, NULL);
		sigaction(SIGUSR2, &act, NULL);
		raise(SIGUSR1);
		if (with == 0)
			continue;
		act.sa_flags ^= SA_ONSTACK;
		sigaction(SIGUSR2, &act, NULL);
		raise(SIGUSR1);
	}
	stack.ss_flags = SS_DISABLE;
	printf("taken away: %d\n", sigaltstack(&stack, &now));
	printf("was %d, %zu\n", now.ss_sp == own, now.ss_size);
	free(own);
	own = NULL;
}

static void *thread(void *unused)
{
	stacks();
	return unused;
}

/* ---- the floating-point state ---- */

static volatile double bad;

static void computes(int signum)
{
	volatile long double a = 1, b = 3;

	(void)signum;
	count++;
	if (fegetround() != FE_TONEAREST)
		bad++;
	fesetround(FE_UPWARD);
	for (int i = 0; i < 50; i++)
		a = a / b + i;
	if (count % 5 == 0 && pwrite(fd, data, 5000, 0) != 5000)
		bad++;
	errno = 1;
}

/* chaotic computes a sequence in which any error grows (the logistic map). */
static long double chaotic(int steps)
{
	long double x = 0.3L;
	double y = 0.4;

	for (int i = 0; i < steps; i++) {
		x = 3.9L * x * (1 - x);
		y = 3.8 * y * (1 - y);
	}
	return x + y;
}

static void compute(void)
{
	struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
	struct sigaction act = {.sa_handler = computes, .sa_flags = SA_RESTART};
	int wrong = 0;

	fesetround(FE_DOWNWARD);
	long double expected = chaotic(100000);

	count = 0;
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < 100 || count < 200; i++) {
		wrong += chaotic(100000) != expected;
		wrong += fegetround() != FE_DOWNWARD;
		wrong += pwrite(fd, data, 4096, 0) != 4096;
	}
	setitimer(ITIMER_REAL, &never, NULL);
	fesetround(FE_TONEAREST);
	printf("%d wrong, %g in handlers\n", wrong, bad);
}

/* ---- coroutines ---- */

enum { ROUTINES = 4 };

static ucontext_t routines[ROUTINES], end;
static int running, done;
static volatile int turns;

static void exchanges(int signum)
{
	int before = running;

	(void)signum;
	turns++;
	running = (running + 1) % ROUTINES;
	swapcontext(&routines[before], &routines[running]);
}

static void routine(void)
{
	int me = running;
	static int results[ROUTINES];
	sigset_t alarm;

	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	sigprocmask(SIG_UNBLOCK, &alarm, NULL);
	for (int i = 0; i < 40 || turns < 100; i++) {
		results[me] += chaotic(20000) > 0;
		results[me] += pwrite(fd, data, 10000, me * 10000) == 10000;
	}
	sigprocmask(SIG_BLOCK, &alarm, NULL);
	printf("a routine is done: %d\n", results[me] >= 80);
	if (++done == ROUTINES)
		setcontext(&end);
	for (sigprocmask(SIG_UNBLOCK, &alarm, NULL);;)
		pause();
}

static void exchange(void)
{
	struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	struct sigaction act = {.sa_handler = exchanges, .sa_flags = SA_RESTART};
	volatile bool again = false;
	sigset_t alarm;

	/* A coroutine starts with the signal blocked, since swapcontext sets the mask first. */
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	sigprocmask(SIG_BLOCK, &alarm, NULL);
	for (int i = 0; i < ROUTINES; i++) {
		getcontext(&routines[i]);
		routines[i].uc_stack.ss_sp = malloc(256 << 10);
		routines[i].uc_stack.ss_size = 256 << 10;
		makecontext(&routines[i], routine, 0);
	}
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	getcontext(&end);
	if (!again) {
		again = true;
		setcontext(&routines[0]);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	signal(SIGALRM, SIG_IGN); /* a pending signal would switch to a coroutine again */
	sigprocmask(SIG_UNBLOCK, &alarm, NULL);
	printf("exchanged %d\n", turns >= 100);
}

/* ---- a handler whose stack is unmapped ---- */

static ucontext_t elsewhere;

static void leaves(int signum)
{
	(void)signum;
	count += pwrite(fd, data, 10, 0) == 10;
	setcontext(&end);
}

static void interrupted(void)
{
	raise(SIGUSR1);
}

enum { HALF = 256 << 10 };

/* leaves_in runs on the lower half of a mapping, and a handler runs on the upper half. */
static void *leaves_in(void *lower)
{
	char *upper = (char *)lower + HALF;
	volatile bool left = false;
	sigset_t all, before;

	getcontext(&elsewhere);
	elsewhere.uc_stack.ss_sp = upper;
	elsewhere.uc_stack.ss_size = HALF;
	makecontext(&elsewhere, interrupted, 0);
	getcontext(&end);
	if (!left) {
		left = true;
		setcontext(&elsewhere);
	}
	munmap(upper, HALF);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	count += pwrite(fd, data, 10, 0) == 10;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return NULL;
}

static void leave(void)
{
	char *both = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t attr;
	pthread_t t;

	count = 0;
	signal(SIGUSR1, leaves);
	pthread_attr_init(&attr);
	pthread_attr_setstack(&attr, both, HALF);
	pthread_create(&t, &attr, leaves_in, both);
	pthread_join(t, NULL);
	munmap(both, HALF);
	printf("left: %d\n", count);
}

/* ---- nested handlers ---- */

static sigjmp_buf back;

static void nests(int signum)
{
	char large[8 << 10];

	memset(large, signum, sizeof large);
	count += pwrite(fd, large, sizeof large, 0) == sizeof large;
}

static void nest(void)
{
	struct sigaction act = {.sa_handler = nests, .sa_flags = SA_NODEFER};
	sigset_t some, before;

	count = 0;
	sigemptyset(&some);
	for (int s = SIGRTMIN; s <= SIGRTMAX; s++) {
		sigaction(s, &act, NULL);
		sigaddset(&some, s);
	}
	for (int round = 0; round < 20; round++) {
		sigprocmask(SIG_BLOCK, &some, &before);
		for (int i = 0; i < 100; i++)
			raise(SIGRTMIN + i % (SIGRTMAX - SIGRTMIN));
		sigprocmask(SIG_SETMASK, &before, NULL);
	}
	printf("%d handled\n", count);
}

static void jumps(int signum)
{
	(void)signum;
	siglongjmp(back, 1);
}

/* deeper uses the file with a stack pointer below that of the handler. */
static int deeper(int n)
{
	volatile char local[300];

	local[0] = local[299] = (char)n;
	if (n > 0)
		return deeper(n - 1) + (local[0] != local[299]);
	int copy = dup(fd);
	void *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

	return copy < 0 || close(copy) != 0 || memory == MAP_FAILED || munmap(memory, 4096) != 0;
}

static void jump(void)
{
	struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
	struct sigaction act = {.sa_handler = jumps};
	static volatile int i, written;

	sigaction(SIGALRM, &act, NULL);
	static volatile int failed;

	if (sigsetjmp(back, 1) != 0)
		failed += deeper(30);
	if (i == 0)
		setitimer(ITIMER_REAL, &often, NULL);
	while (i++ < 300)
		written += pwrite(fd, data, sizeof data, 0) == sizeof data;
	setitimer(ITIMER_REAL, &never, NULL);
	while (sigsetjmp(back, 1) == 0)
		for (raise(SIGALRM);;)
			;
	printf("%d failed deeper\n", failed + deeper(30));
	printf("jumped, still writes: %d\n", pwrite(fd, data, 10, 0) == 10);
}

/* ---- children ---- */

static char name[4096];

static void forks(int signum)
{
	int status, new = open(name, O_RDWR);
	pid_t child = fork();

	(void)signum;
	if (child == 0) {
		int again = open(name, O_RDONLY);

		_exit((pwrite(fd, data, 10, 0) == 10) + 2 * (read(again, data, 10) == 10) + 4 * (read(new, data, 5) == 5));
	}
	waitpid(child, &status, 0);
	printf("child %x, offset %d\n", status, (int)lseek(new, 0, SEEK_CUR));
	close(new);
}

/* ---- the backtrace of a handler ---- */

static void traces(int signum)
{
	void *frames[64];
	int n = backtrace(frames, 64), of_main = 0;
	char **names = backtrace_symbols(frames, n);

	(void)signum;
	for (int i = 0; i < n; i++)
		of_main += strstr(names[i], "(main+") != NULL;
	free(names);
	printf("main is behind the handler: %d\n", of_main);
}

int main(int argc, char **argv)
{
	pthread_t t;

	if (argc != 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	snprintf(name, sizeof name, "%s/file", argv[1]);
	fd = open(name, O_RDWR | O_CREAT, 0600);
	signal(SIGUSR1, forks);
	raise(SIGUSR1);
	stacks();
	pthread_create(&t, NULL, thread, NULL);
	pthread_join(t, NULL);
	compute();
	exchange();
	leave();
	nest();
	jump();
	signal(SIGUSR1, traces);
	raise(SIGUSR1);
	return 0;
}
