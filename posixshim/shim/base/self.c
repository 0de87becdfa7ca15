/* Which process this memory belongs to: a child of vfork shares its parent's, a forked child has a copy. And sections of code
 * that no signal handler of the thread interrupts. */
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* The process that this memory belongs to. */
NV_EARLY static _Atomic pid_t memory_of;

/* nv_claim_memory is called before main, and in a forked child. */
NV_EARLY_CODE void nv_claim_memory(pid_t process)
{
	atomic_store(&memory_of, process);
}

bool nv_owns_memory(void)
{
	return atomic_load(&memory_of) == getpid();
}

/* See nv_unnoticed_child. nv_detects_fork is set once, before the first thread of a runtime and before the first connection. */
NV_LARGE struct nv_fork_mark nv_fork_mark;
bool nv_detects_fork;

/* nv_detect_fork is called before the process has what a child must not use: a runtime, or a connection to a server. */
void nv_detect_fork(void)
{
	if (nv_detects_fork)
		return;
	nv_fork_mark.kept = 1;
	madvise(&nv_fork_mark, sizeof nv_fork_mark, MADV_WIPEONFORK); /* since Linux 4.14 */
	nv_detects_fork = true;
}

/* How many critical sections this thread is in, and its signal mask before the outermost one. */
static __thread unsigned depth __attribute__((tls_model("initial-exec")));
static __thread uint64_t outer_mask __attribute__((tls_model("initial-exec")));

void nv_begin_critical(void)
{
	uint64_t before;

	nv_block_signals(&before);
	if (depth++ == 0)
		outer_mask = before;
}

void nv_end_critical(void)
{
	if (--depth == 0)
		nv_unblock_signals(outer_mask);
}
