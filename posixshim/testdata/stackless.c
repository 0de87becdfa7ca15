/* Threads without an alternate signal stack use files of argv[1] while many signals arrive: threads that have removed theirs, and
 * threads that start in a signal handler. A handler on the stack of a goroutine would overwrite memory of the runtime. The next
 * signals are sent when the thread has handled the previous ones, however busy the machine is. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>
#include <unistd.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1 << 31)
#endif

enum { AT_A_TIME = 8, TIMES = 30, STACK = 64 << 10 };

static int fd;
static char data[1 << 20];
static char directory[4000];
static volatile sig_atomic_t failed;

static void try(bool right)
{
	failed += !right;
}

static _Atomic int sent, handled;

static void counts(int signum)
{
	(void)signum;
	atomic_fetch_add(&handled, 1);
}

static void writes(int signum)
{
	(void)signum;
	try(pwrite(fd, data, 5000, 0) == 5000);
}

static thread_local sigjmp_buf back;

static void jumps(int signum)
{
	(void)signum;
	siglongjmp(back, 1);
}

/* ---- threads that remove the stack ---- */

static void takes_away(void)
{
	stack_t stack = {.ss_sp = malloc(STACK), .ss_size = STACK};

	sigaltstack(&stack, NULL);
	writes(0);
	stack.ss_flags = SS_DISABLE;
	sigaltstack(&stack, NULL);
	free(stack.ss_sp);
}

static void has_handler_first(void)
{
	raise(SIGUSR1);
}

static void jumps_out(void)
{
	stack_t stack = {.ss_sp = malloc(STACK), .ss_size = STACK, .ss_flags = SS_AUTODISARM};

	sigaltstack(&stack, NULL);
	writes(0);
	if (sigsetjmp(back, 1) == 0)
		raise(SIGUSR2);
	free(stack.ss_sp);
}

/* ---- the use of files ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t target;
static bool targeted, done;

static void *sends(void *unused)
{
	bool more = true;

	for (; more; usleep(200)) {
		pthread_mutex_lock(&lock);
		if (targeted && handled == sent) {
			sent += AT_A_TIME;
			for (int i = 1; i <= AT_A_TIME; i++)
				pthread_kill(target, SIGRTMIN + i);
		}
		more = !done;
		pthread_mutex_unlock(&lock);
	}
	return unused;
}

static void aim(bool at_this)
{
	pthread_mutex_lock(&lock);
	target = pthread_self();
	targeted = at_this;
	if (at_this) /* signals to the previous thread are not counted: it has ended */
		sent = handled = 0;
	pthread_mutex_unlock(&lock);
}

static int thread(void *lose)
{
	char name[sizeof directory + 20];

	((void (*)(void))lose)();
	aim(true);
	for (int i = 0; i < TIMES || handled < TIMES; i++) {
		snprintf(name, sizeof name, "%s/%d", directory, i);
		int new = open(name, O_RDWR | O_CREAT, 0600);

		try(new >= 0 && pwrite(new, data, sizeof data, i * 1000) == sizeof data && close(new) == 0);
		try(unlink(name) == 0);
	}
	aim(false);
	return 0;
}

int main(int argc, char **argv)
{
	static void (*const ways[])(void) = {has_handler_first, takes_away, jumps_out};
	pthread_t sender;

	if (argc != 2)
		return 2;
	snprintf(directory, sizeof directory, "%s", argv[1]);
	snprintf(data, sizeof data, "%s/file", directory);
	fd = open(data, O_RDWR | O_CREAT, 0600);
	signal(SIGUSR1, writes);
	signal(SIGUSR2, jumps);
	for (int i = 1; i <= AT_A_TIME; i++)
		signal(SIGRTMIN + i, counts);
	pthread_create(&sender, NULL, sends, NULL);
	for (int i = 0; i < 9; i++) {
		thrd_t t;

		thrd_create(&t, thread, ways[i % 3]);
		thrd_join(t, NULL);
	}
	pthread_mutex_lock(&lock);
	done = true;
	pthread_mutex_unlock(&lock);
	pthread_join(sender, NULL);
	printf("%d failed\n", failed);
	return 0;
}
