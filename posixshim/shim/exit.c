/* The end of the process.
 *
 * Files have to work until the last stream is flushed: libgfortran closes its
 * units in a destructor, and libc flushes streams that were left open after
 * all destructors have run. libc does that from the newest stream to the
 * oldest, so a stream that is older than any of ours is flushed behind them.
 * We keep such a stream, the sentinel, empty; a destructor puts a byte into
 * it, and when libc writes that byte the process is truly at its end.
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

static FILE *sentinel;
static pid_t owner;

/* The use of the mount is being ended, or has been; and by this thread. */
static _Atomic bool ending;
static __thread bool ends __attribute__((tls_model("initial-exec")));

/* nv_finish ends the use of the mount. */
void nv_finish(void)
{
	struct nv_visit visit;

	if (!nv_enter(&visit))
		return;
	ends = true;
	atomic_store(&ending, true);
	nv_leave(&visit, nv_rt.finish());
}

/* nv_await_end is called when a call has failed. It may have come too late, while
 * another thread ends the process: on a local file system it would go on until
 * the process is no more, so it waits for that. Not for ever: that thread may want
 * a lock of this one's. */
void nv_await_end(void)
{
	if (__builtin_expect(atomic_load(&ending), 0) && !ends)
		nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
}

/* nv_forget_end is called in a forked child. */
void nv_forget_end(void)
{
	atomic_store(&ending, false);
	ends = false;
}

static ssize_t at_end(void *cookie, const char *buf, size_t n)
{
	(void)cookie;
	(void)buf;
	/* A forked child has nothing to end. */
	if (getpid() != owner)
		return (ssize_t)n;
	nv_linger(true);
	nv_finish();
	return (ssize_t)n;
}

void nv_prepare_exit(void)
{
	owner = getpid();
	sentinel = fopencookie(NULL, "w", (cookie_io_functions_t){.write = at_end});
}

__attribute__((destructor)) static void arm(void)
{
	if (sentinel != NULL)
		fputc('\n', sentinel);
}

static pthread_key_t first_key;

/* counts says whether a thread of this process is the application's, and runs. */
static bool counts(const char *tid)
{
	char name[64], text[256];

	snprintf(name, sizeof name, "/proc/self/task/%.20s/stat", tid);
	int fd = REAL(open)(name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : REAL(read)(fd, text, sizeof text - 1);

	if (fd >= 0)
		REAL(close)(fd);
	text[n < 0 ? 0 : n] = '\0';
	const char *state = strrchr(text, ')');

	return state != NULL && strncmp(state, ") Z", 3) != 0 && strstr(text, " (" NV_THREAD ") ") == NULL &&
	       atoi(tid) != (int)REAL(syscall)(SYS_gettid);
}

static bool last(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	bool others = dir == NULL;

	while (!others && (entry = readdir(dir)) != NULL)
		others = entry->d_name[0] != '.' && counts(entry->d_name);
	if (dir != NULL)
		closedir(dir);
	return !others;
}

static void *outlast(void *unused)
{
	struct timespec pause = {.tv_nsec = 1000 * 1000};

	(void)unused;
	nv_signal_stack();
	for (; !last(); nanosleep(&pause, NULL))
		if (pause.tv_nsec < 50 * 1000 * 1000)
			pause.tv_nsec *= 2;
	exit(0); /* as libc does it */
}

/* first_ends is called when the process's first thread ends before it does. */
static void first_ends(void *unused)
{
	sigset_t all, before;
	pthread_t thread;

	(void)unused;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (REAL(pthread_create)(&thread, NULL, outlast, NULL) == 0)
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void make_key(void)
{
	pthread_key_create(&first_key, first_ends);
}

/* nv_first_thread notes that the process begins with this thread. */
void nv_first_thread(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_key);
	pthread_setspecific(first_key, &first_key);
}
