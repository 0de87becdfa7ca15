/* The end of the process: what becomes of what it has open. */
#include <stdio.h>
#include <unistd.h>

#include "nv.h"

/* nv_finish ends the use of the mount. */
void nv_finish(void)
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

/* nv_end_process is called at the end (end.c). */
void nv_end_process(void)
{
	if (!nv_loaded()) {
		nv_release_mappings();
		return;
	}
	flush();
	nv_hand_over();
	nv_finish();
}

/* nv_quit is _exit, which shells end with. A local file system keeps what was
 * written, to mappings too; and who has the partition next need not find out
 * whether something is still on its way. */
void nv_quit(int status)
{
	if (nv_loaded() && nv_state != NV_INSIDE && nv_own_memory()) {
		nv_hand_over();
		nv_finish();
	} else if (!nv_loaded()) {
		nv_release_mappings();
	}
	REAL(_exit)(status);
}
