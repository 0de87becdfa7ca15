/* Whether the process is ending (process/exit.c). */
#include <time.h>

#include "nv.h"

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
