/* When the process ends.
 *
 * Files have to work until the last stream is flushed: libgfortran closes its
 * units in a destructor, and libc flushes streams that were left open after
 * all destructors have run. libc does that from the newest stream to the
 * oldest, so a stream that is older than any of ours is flushed behind them.
 * We keep such a stream, the sentinel, empty; a destructor puts a byte into
 * it, and when libc writes that byte the process is truly at its end. */
#include <time.h>
#include <unistd.h>

#include "nv.h"

NV_EARLY static FILE *sentinel;
static pid_t owner;

/* The use of the mount is being ended, or has been; and by this thread. */
static _Atomic bool ending;
static __thread bool ends __attribute__((tls_model("initial-exec")));

/* nv_begin_end notes that this thread ends the use of the mount. */
void nv_begin_end(void)
{
	ends = true;
	atomic_store(&ending, true);
}

/* nv_await_end is called when a call has failed. It may have come too late, while
 * another thread ends the process: on a local file system it would go on until
 * the process is no more, so it waits for that. Not for ever: that thread may want
 * a lock of this one's. */
void nv_await_end(void)
{
	struct timespec pause = {.tv_sec = 1};

	if (__builtin_expect(atomic_load(&ending), 0) && !ends)
		while (nanosleep(&pause, &pause) != 0 && errno == EINTR)
			;
}

/* nv_forget_end is called in a forked child. */
void nv_forget_end(void)
{
	atomic_store(&ending, false);
	ends = false;
}

void (*nv_at_end)(void);

static ssize_t at_end(void *cookie, const char *buf, size_t n)
{
	(void)cookie;
	(void)buf;
	if (getpid() == owner) /* a forked child has nothing to end */
		nv_at_end();
	return (ssize_t)n;
}

/* nv_prepare_exit is called when the runtime has been loaded, or another process has
 * made a mapping for this one. */
void nv_prepare_exit(void)
{
	if (owner == getpid() && sentinel != NULL)
		return;
	owner = getpid();
	sentinel = fopencookie(NULL, "w", (cookie_io_functions_t){.write = at_end});
}

__attribute__((destructor)) static void arm(void)
{
	if (sentinel != NULL)
		fputc('\n', sentinel);
}
