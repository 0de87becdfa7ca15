/* Signal handlers that need half a mebibyte of stack write to a file of argv[1]: handlers of fault signals, and one with
 * SA_ONSTACK, in threads without an alternate signal stack. They must not overwrite memory of the runtime. Then many such threads
 * start and end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <threads.h>
#include <unistd.h>

static int fd;
static thread_local sigjmp_buf back;

static void saves(int signum)
{
	char state[512 << 10];
	int whole = 0;

	memset(state, signum, sizeof state);
	for (int i = 0; i < 4; i++)
		whole += pwrite(fd, state, sizeof state, (off_t)sizeof state * i) == sizeof state;
	printf("signal %d: %d written, fsync %d\n", signum, whole, fsync(fd));
	siglongjmp(back, 1);
}

static void *fails(void *unused)
{
	static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGUSR1};

	(void)!pwrite(fd, "x", 1, 0);
	for (volatile size_t i = 0; i < sizeof signals / sizeof *signals; i++)
		if (sigsetjmp(back, 1) == 0)
			raise(signals[i]);
	if (sigsetjmp(back, 1) == 0)
		*(volatile int *)unused = 1;
	return NULL;
}

static void *uses(void *unused)
{
	return pwrite(fd, "x", 1, 0) == 1 ? unused : &fd;
}

/* mapped returns the size of the process's mapped memory in MiB. */
static long mapped(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long pages = 0;

	if (f == NULL || fscanf(f, "%ld", &pages) != 1)
		perror("/proc/self/statm");
	if (f != NULL)
		fclose(f);
	return pages * sysconf(_SC_PAGESIZE) >> 20;
}

static int many(int n)
{
	int failed = 0;

	for (int i = 0; i < n; i++) {
		pthread_t thread;
		void *result = &fd;

		if (pthread_create(&thread, NULL, uses, NULL) == 0)
			pthread_join(thread, &result);
		failed += result != NULL;
	}
	return failed;
}

int main(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = saves, .sa_flags = SA_ONSTACK};
	pthread_t thread;

	if (argc != 2 || chdir(argv[1]) != 0 || (fd = open("state", O_RDWR | O_CREAT, 0600)) < 0)
		return 1;
	signal(SIGSEGV, saves);
	signal(SIGBUS, saves);
	signal(SIGFPE, saves);
	sigaction(SIGUSR1, &act, NULL);
	fails(NULL);
	if (pthread_create(&thread, NULL, fails, NULL) != 0 || pthread_join(thread, NULL) != 0)
		return 1;
	int failed = many(10);
	long before = mapped();

	failed += many(500);
	printf("%d threads failed, memory of them is left: %d\n", failed, mapped() - before > 250);
	return 0;
}
