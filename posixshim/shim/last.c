/* The last thread of the process.
 *
 * A process whose first thread calls pthread_exit ends with the last of the others.
 * libc counts them, and the runtime's as well, which never end. So one more thread
 * then looks now and then whether only those are left: nobody is told of
 * the end of a thread that nobody joins. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nv.h"

NV_EARLY static pthread_key_t first_key;

/* counts says whether a thread of this process is the application's, and runs. */
static bool counts(pid_t tid)
{
	char name[64], text[256];

	snprintf(name, sizeof name, "/proc/self/task/%d/stat", (int)tid);
	int fd = REAL(open)(name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : REAL(read)(fd, text, sizeof text - 1);
	bool gone = n < 0 && (errno == ENOENT || errno == ESRCH);

	if (fd >= 0)
		REAL(close)(fd);
	if (n < 0)
		return !gone;
	text[n] = '\0';
	const char *state = strrchr(text, ')');

	return state != NULL && strncmp(state, ") Z", 3) != 0 && strstr(text, " (" NV_THREAD ") ") == NULL &&
	       tid != (pid_t)REAL(syscall)(SYS_gettid);
}

/* Threads of the application that are just being created, and that have been. */
static _Atomic unsigned begun, created;

void nv_creates_thread(bool done)
{
	atomic_fetch_add(done ? &created : &begun, 1);
}

/* threads lists those of the process, and returns how many they are; 0 if that
 * cannot be said. The application may have left one descriptor. */
static int threads(pid_t *tids, int most)
{
	DIR *dir = REAL(opendir)("/proc/self/task");
	struct dirent *entry;
	int n = 0;

	while (dir != NULL && n < most && (entry = REAL(readdir)(dir)) != NULL)
		if (entry->d_name[0] != '.')
			tids[n++] = atoi(entry->d_name);
	if (dir != NULL)
		REAL(closedir)(dir);
	return n < most ? n : 0;
}

/* last says whether this thread is the last one. A list of threads lacks those that
 * were created while it was read. */
static bool last(void)
{
	static pid_t tids[4096];
	unsigned before = atomic_load(&begun);
	int n = atomic_load(&created) == before ? threads(tids, sizeof tids / sizeof *tids) : 0;
	bool others = n == 0;

	for (int i = 0; i < n && !others; i++)
		others = counts(tids[i]);
	return !others && atomic_load(&begun) == before;
}

static void *outlast(void *unused)
{
	struct timespec pause = {.tv_nsec = 1000 * 1000};

	(void)unused;
	/* Twice, for threads that libraries have created unseen. */
	for (int n = 0; n < 2; n = last() ? n + 1 : 0) {
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 50 * 1000 * 1000)
			pause.tv_nsec *= 2;
	}
	exit(0); /* as libc does it */
}

/* The first thread has ended; somebody outlasts the others. */
static _Atomic bool first_ended, outlasting;

/* nv_outlast is called when the first thread ends, and when the runtime has been
 * loaded: without that libc counts right. */
void nv_outlast(void)
{
	sigset_t all, before;
	pthread_t thread;

	if (!atomic_load(&first_ended) || !nv_loaded() || atomic_exchange(&outlasting, true))
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (REAL(pthread_create)(&thread, NULL, outlast, NULL) == 0)
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void first_ends(void *unused)
{
	(void)unused;
	atomic_store(&first_ended, true);
	nv_outlast();
}

/* nv_prepare_first_thread is called before main. */
NV_EARLY_CODE void nv_prepare_first_thread(void)
{
	pthread_key_create(&first_key, first_ends);
	pthread_setspecific(first_key, &first_key);
}

/* nv_first_thread notes that a forked child begins with this thread. */
void nv_first_thread(void)
{
	atomic_store(&first_ended, false);
	atomic_store(&outlasting, false);
	atomic_store(&created, 0);
	atomic_store(&begun, 0);
	pthread_setspecific(first_key, &first_key);
}
