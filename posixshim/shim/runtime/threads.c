/* The runtime's own threads: their name, their processors, their timer slack.
 *
 * Where the process is pinned to one core, the runtime moves its threads to other processors (cmd/libnvmecr/processors.go).
 * Threads that it creates later get the processors of its first thread, whichever thread creates them.
 *
 * The timer slack is large because of Go's monitor thread, which sleeps 20 us at a time while any thread is in a system call.
 * With more ranks than cores it would take the cores from the ranks. */
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "nv.h"

/* The timer slack, in ns. It bounds how long a goroutine waits for a P of the Go scheduler that a thread in a system call
 * has: the monitor thread takes that away after a sleep. */
#define TIMER_SLACK (2ul * 1000 * 1000)

/* The first thread of the runtime; 0: the runtime has no thread yet. */
static _Atomic pid_t first;

/* This thread is a thread of the runtime. */
static __thread bool own __attribute__((tls_model("initial-exec")));

/* nv_in_runtime says whether this is a thread of the runtime, or is inside. Threads that it creates are the runtime's. */
bool nv_in_runtime(void)
{
	return own || nv_state == NV_INSIDE;
}

/* follow gives this thread the processors of the first one. */
static void follow(void)
{
	unsigned long cpus[8192 / (8 * sizeof(unsigned long))]; /* a bit for each; 8192 is the largest CONFIG_NR_CPUS */
	pid_t none = 0;

	if (!atomic_compare_exchange_strong(&first, &none, gettid()) &&
	    sched_getaffinity(first, sizeof cpus, (cpu_set_t *)cpus) == 0)
		(void)sched_setaffinity(0, sizeof cpus, (cpu_set_t *)cpus); /* if that fails, it keeps its own */
}

/* nv_init_thread is called first in each thread of the runtime. */
void nv_init_thread(void)
{
	own = true;
	nv_state = NV_INSIDE; /* interposed calls of libraries that the runtime uses are the real ones */
	prctl(PR_SET_NAME, NV_THREAD);
	prctl(PR_SET_TIMERSLACK, TIMER_SLACK);
	follow();
}

/* Libraries that the runtime uses act as if the process were theirs. On threads of the runtime they must not
 * flush standard output, which in a forked child holds a copy of the parent's buffered data, and must not set the program's
 * name in the system log. */

NV_EARLY_CODE int nv_fflush(FILE *stream)
{
	return own && (stream == NULL || stream == *nv_standard_stream(STDOUT_FILENO)) ? 0 : REAL(fflush)(stream);
}

void nv_openlog(const char *name, int options, int facility)
{
	if (!own)
		REAL(openlog)(name, options, facility);
}
