/* Calls exit in a signal handler. A stream of argv[1] has data in its buffer, and a handler of atexit writes to it. The signal
 * goes to the main thread, or to another one (argv[2]). */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *path;
static FILE *stream;

static void at_end(void)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || pwrite(fd, ", at the end", 12, 8) != 12)
		_exit(1);
}

static void on_alarm(int signum)
{
	(void)signum;
	exit(0);
}

static void *wait_for_it(void *unused)
{
	sigset_t none;

	(void)unused;
	sigemptyset(&none);
	fsync(fileno(stream));
	alarm(1);
	sigsuspend(&none);
	return NULL;
}

int main(int argc, char **argv)
{
	sigset_t alarms;
	pthread_t t;

	if (argc != 3)
		return 2;
	path = argv[1];
	stream = fopen(path, "w");
	if (stream == NULL)
		return 1;
	setvbuf(stream, NULL, _IOFBF, 4096);
	atexit(at_end);
	signal(SIGALRM, on_alarm);
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarms, NULL);
	fputs("buffered", stream);
	if (strcmp(argv[2], "thread") != 0)
		wait_for_it(NULL);
	else if (pthread_create(&t, NULL, wait_for_it, NULL) == 0)
		pthread_join(t, NULL);
	return 1;
}
