/* The end of the process: what becomes of what it has open.
 *
 * Files have to work until the last stream is flushed: libgfortran closes its
 * units in a destructor, and libc flushes streams that were left open after
 * all destructors have run. libc does that from the newest stream to the
 * oldest, so a stream that is older than any of ours is flushed behind them.
 * Such a stream, the sentinel, is kept empty. A destructor puts a byte into
 * it, and when libc writes that byte the process is truly at its end. */
#include <stdio.h>
#include <unistd.h>

#include "nv.h"

/* finish ends the use of the mount. */
static void finish(void)
{
	struct nv_visit visit;

	if (!nv_enter(&visit))
		return;
	nv_begin_end();
	nv_leave(&visit, nv_rt.finish());
}

/* flush writes what the C library's own streams hold for files of ours: they are older than
 * the sentinel. It takes no lock, as little as the C library does here. */
static void flush(void)
{
	for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
		if (nv_ours(fd) > 0)
			fflush_unlocked(*nv_standard_stream(fd));
}

static void end_process(void)
{
	if (!nv_loaded()) {
		nv_release_mappings();
	} else if (nv_state != NV_INSIDE && nv_own_memory()) {
		nv_hand_over();
		finish();
	}
}

static FILE *_Atomic sentinel;

static ssize_t at_end(void *cookie, const char *buf, size_t n)
{
	(void)cookie;
	(void)buf;
	nv_notice_fork();
	flush();
	end_process();
	return (ssize_t)n;
}

/* nv_prepare_exit is called before there is a stream of ours. Forked children have the sentinel as well. */
void nv_prepare_exit(void)
{
	FILE *none = NULL;

	if (atomic_load(&sentinel) != NULL)
		return;
	FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = at_end});

	if (!atomic_compare_exchange_strong(&sentinel, &none, stream) && stream != NULL)
		REAL(fclose)(stream); /* another thread was first */
}

__attribute__((destructor)) static void arm(void)
{
	if (!nv_loaded() && !nv_served())
		return;
	nv_prepare_exit();
	if (sentinel != NULL)
		fputc('\n', sentinel);
}

/* nv_quit is _exit, which shells end with. A local file system keeps what was
 * written, to mappings too; and who has the partition next need not find out
 * whether something is still on its way. */
void nv_quit(int status)
{
	end_process();
	REAL(_exit)(status);
}
