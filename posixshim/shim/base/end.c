/* Whether the process is ending (process/exit.c). The thread that ends it sets both variables; any thread reads them. */
#include <time.h>

#include "nv.h"

/* A thread closes the mounts, or has closed them; and this thread is that one. */
static _Atomic bool ending;
static __thread bool ending_here __attribute__((tls_model("initial-exec")));

/* nv_begin_exit is called by the thread that is about to close the mounts. */
void nv_begin_exit(void)
{
	ending_here = true;
	atomic_store(&ending, true);
}

/* nv_await_exit is called after a call that failed. The reason may be that another thread is ending the process. On a local
 * file system the call would succeed until the process is gone, and nobody would see an error. So the call waits for the
 * end of the process. It waits one second at most, because the other thread may need a lock that this thread holds. */
void nv_await_exit(void)
{
	struct timespec pause = {.tv_sec = 1};

	if (__builtin_expect(atomic_load(&ending), 0) && !ending_here)
		while (nanosleep(&pause, &pause) != 0 && errno == EINTR)
			;
}

void nv_forget_exit(void)
{
	atomic_store(&ending, false);
	ending_here = false;
}
