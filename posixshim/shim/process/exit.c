/* The end of the process: the mounts are closed after the last write to a file.
 *
 * libgfortran closes its units in a destructor. After all destructors, libc flushes the streams that are still open, from the
 * newest to the oldest. A stream that is older than all of ours is therefore flushed last. This stream is the sentinel. It is
 * empty until a destructor of this library puts a byte into it. When libc writes that byte, the mounts are closed. */
#include <stdio.h>
#include <unistd.h>

#include "nv.h"

/* finish closes all files and mounts of the runtime. */
static void finish(void)
{
	struct nv_visit visit;

	if (!nv_enter(&visit))
		return;
	nv_begin_exit();
	nv_leave(&visit, nv_rt.finish());
}

/* flush flushes stdout and stderr if their descriptors are ours: they are older than the sentinel. It locks no stream, as the
 * C library does not at exit: another thread may have the lock for ever. */
static void flush(void)
{
	for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
		if (nv_handle_of(fd) > 0)
			fflush_unlocked(*nv_standard_stream(fd));
}

/* end_process hands over the files that other processes have open, and closes the mounts. */
static void end_process(void)
{
	if (!nv_loaded()) {
		nv_release_mappings();
	} else if (nv_state != NV_INSIDE && nv_owns_memory()) {
		nv_hand_over();
		finish();
	}
}

static FILE *_Atomic sentinel; /* set once */

/* write_sentinel is called when libc flushes the sentinel. */
static ssize_t write_sentinel(void *cookie, const char *buf, size_t n)
{
	(void)cookie;
	(void)buf;
	nv_notice_fork();
	flush();
	end_process();
	return (ssize_t)n;
}

/* nv_prepare_exit is called before the first stream of ours is opened. It makes the sentinel, which forked children inherit. */
void nv_prepare_exit(void)
{
	FILE *none = NULL;

	if (atomic_load(&sentinel) != NULL)
		return;
	FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_sentinel});

	if (!atomic_compare_exchange_strong(&sentinel, &none, stream) && stream != NULL)
		REAL(fclose)(stream); /* another thread has made it first */
}

__attribute__((destructor)) static void arm(void)
{
	if (!nv_loaded() && !nv_served())
		return;
	nv_prepare_exit();
	if (sentinel != NULL)
		fputc('\n', sentinel);
}

/* nv_quit is _exit, which shells end with. It closes the mounts, so that data in mappings is written as on a local file
 * system, and so that the next process need not wait for the partition. */
void nv_quit(int status)
{
	end_process();
	REAL(_exit)(status);
}
