/* Profiling signals arrive while threads start, use files of argv[1] and end. They are sent to the process, as by ITIMER_PROF, or
 * to a thread, as by a timer of the thread. Each is sent after the handler of the previous one has run. None may be lost. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

enum { SAMPLES = 2000 };

static _Atomic int handled, strange, failed;
static atomic_bool done;
static char data[4096], name[4096];
static pthread_t first;

static void sample(int signum, siginfo_t *info, void *context)
{
	bool sent = info->si_code == SI_USER || info->si_code == SI_TKILL;

	strange += signum != SIGPROF || !sent || info->si_pid != getpid() || context == NULL;
	handled += 1;
}

static void *sends(void *to_thread)
{
	for (int i = 1; i <= SAMPLES; i++) {
		if (to_thread != NULL)
			pthread_kill(first, SIGPROF);
		else
			kill(getpid(), SIGPROF);
		while (handled < i)
			usleep(50);
	}
	done = true;
	return NULL;
}

static void *writes(void *unused)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	for (int i = 0; i < 20; i++)
		failed += pwrite(fd, data, sizeof data, 0) != sizeof data;
	failed += close(fd) != 0;
	return unused;
}

int main(int argc, char **argv)
{
	const struct sigaction act = {.sa_sigaction = sample, .sa_flags = SA_SIGINFO | SA_RESTART};
	pthread_t sender, thread;
	sigset_t prof, before;

	if (argc != 2)
		return 2;
	first = pthread_self();
	snprintf(name, sizeof name, "%s/profiled", argv[1]);
	sigaction(SIGPROF, &act, NULL);
	sigemptyset(&prof);
	sigaddset(&prof, SIGPROF);
	for (long to_thread = 0; to_thread < 2; to_thread++) {
		handled = 0;
		done = false;
		pthread_sigmask(SIG_BLOCK, &prof, &before);
		pthread_create(&sender, NULL, sends, (void *)to_thread);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		while (!done) {
			writes(NULL);
			pthread_create(&thread, NULL, writes, NULL);
			pthread_join(thread, NULL);
		}
		pthread_join(sender, NULL);
		printf("%d handled, %d strange, %d calls failed\n", handled, strange, failed);
	}
	return 0;
}
