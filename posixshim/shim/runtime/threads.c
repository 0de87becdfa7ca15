/* The runtime's own threads: what they are called and where they run.
 *
 * Where the process is pinned to one core the runtime moves its threads to others (cmd/libnvmecr/processors.go). Those
 * that it creates later run where the first of them does, whoever creates them.
 *
 * Their naps may be longer than they ask for. Go's monitor thread sleeps 20 us at
 * a time as long as any thread is in a system call, so with more ranks than
 * cores it takes the cores from those who would do the work. */
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "nv.h"

/* How much longer a thread of the runtime may sleep than it asks for, in ns. It
 * is a bound for what depends on such naps: a goroutine that waits for the
 * processor (a P) of a thread in a system call, when there is no other. */
#define NAP (2ul * 1000 * 1000)

/* The first thread of the runtime; 0: there is none yet. */
static _Atomic pid_t first;

/* This thread is the runtime's, and so are those that it creates. */
static __thread bool own __attribute__((tls_model("initial-exec")));

/* nv_runtimes says whether this thread is the runtime's, or in it. What it creates is the runtime's, too. */
bool nv_runtimes(void)
{
	return own || nv_state == NV_INSIDE;
}

/* follow makes this thread run where the first one does. */
static void follow(void)
{
	unsigned long cpus[8192 / (8 * sizeof(unsigned long))]; /* the kernel's largest number */
	pid_t none = 0;

	if (!atomic_compare_exchange_strong(&first, &none, gettid()) &&
	    sched_getaffinity(first, sizeof cpus, (cpu_set_t *)cpus) == 0)
		(void)sched_setaffinity(0, sizeof cpus, (cpu_set_t *)cpus); /* else it runs where it is */
}

/* nv_init_thread is the first thing that such a thread does. */
void nv_init_thread(void)
{
	own = true;
	nv_state = NV_INSIDE; /* libraries that the runtime uses call what is interposed */
	prctl(PR_SET_NAME, NV_THREAD);
	prctl(PR_SET_TIMERSLACK, NAP);
	follow();
}

/* nv_forget_threads is called in a forked child. */
void nv_forget_threads(void)
{
	atomic_store(&first, 0);
}

/* Libraries that the runtime uses take the process for theirs. They must not
 * flush its standard output, which in a forked child holds what the parent will
 * write as well, nor say what it is called in the system's log. */

NV_EARLY_CODE int nv_fflush(FILE *stream)
{
	return own && (stream == NULL || stream == *nv_standard_stream(STDOUT_FILENO)) ? 0 : REAL(fflush)(stream);
}

void nv_openlog(const char *name, int options, int facility)
{
	if (!own)
		REAL(openlog)(name, options, facility);
}
