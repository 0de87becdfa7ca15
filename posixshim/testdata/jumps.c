/* Writes in argv[1] while signals arrive continuously. Their handler writes there, too. With more arguments, the handler leaves
 * by siglongjmp every third time. Another thread writes as well. Prints the number of failed calls. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t signals, bad;
static sigjmp_buf back;
static int jump;
static char data[256 << 10];

static void on_alarm(int signum)
{
	(void)signum;
	signals++;
	/* Only every second handler uses files. Otherwise a handler would still run when the next signal arrives, and the threads
	 * would make no progress. */
	if (signals % 2 == 0)
		return;
	int fd = open("handlers", O_RDWR | O_CREAT, 0600);

	if (fd < 0 || pwrite(fd, data, 5000, 0) != 5000 || close(fd) != 0)
		bad++;
	if (signals % 3 == 0 && jump)
		siglongjmp(back, 1);
}

static void *writer(void *unused)
{
	int fd = open("threads", O_RDWR | O_CREAT, 0600);

	for (int i = 0; i < 5000; i++)
		if (pwrite(fd, data, 4096, 0) != 4096)
			bad++;
	return unused;
}

int main(int argc, char **argv)
{
	struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
	static volatile int i;
	sigset_t alarm;
	pthread_t t;

	if (argc < 2 || chdir(argv[1]) != 0)
		return 2;
	jump = argc > 2;
	signal(SIGALRM, on_alarm);
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, NULL);
	int fd = open("main", O_RDWR | O_CREAT, 0600);

	pthread_create(&t, NULL, writer, NULL);
	sigsetjmp(back, 0);
	setitimer(ITIMER_REAL, &often, NULL);
	pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
	for (; i < 2000 || signals < 100; i++) {
		if (pwrite(fd, data, sizeof data >> (i % 8), 0) <= 0 || access("main", R_OK) != 0)
			bad++;
	}
	setitimer(ITIMER_REAL, &never, NULL);
	pthread_join(t, NULL);
	if (pread(fd, data, 10, 0) != 10)
		bad++;
	printf("%d failed\n", bad);
	return 0;
}
