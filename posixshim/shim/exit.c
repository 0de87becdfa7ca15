/* The end of the process.
 *
 * Files have to work until the last stream is flushed: libgfortran closes its
 * units in a destructor, and libc flushes streams that were left open after
 * all destructors have run. libc does that from the newest stream to the
 * oldest, so a stream that is older than any of ours is flushed behind them.
 * We keep such a stream, the sentinel, empty; a destructor puts a byte into
 * it, and when libc writes that byte the process is truly at its end. */
#include <unistd.h>

#include "nv.h"

static FILE *sentinel;
static pid_t owner;

static ssize_t at_end(void *cookie, const char *buf, size_t n)
{
	struct nv_visit visit;

	(void)cookie;
	(void)buf;
	/* A forked child has nothing to end. */
	if (getpid() != owner)
		return (ssize_t)n;
	nv_linger(true);
	if (nv_enter(&visit))
		nv_leave(&visit, nv_rt.finish());
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
