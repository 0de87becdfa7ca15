/* Whose memory this is: a child of vfork shares it, and one that was forked has a copy. And what no handler may come
 * in the middle of. */
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* The process whose memory this is. */
NV_EARLY static _Atomic pid_t memory_of;

/* nv_take_memory is called before main, and in a forked child. */
NV_EARLY_CODE void nv_take_memory(pid_t process)
{
	atomic_store(&memory_of, process);
}

bool nv_own_memory(void)
{
	return atomic_load(&memory_of) == getpid();
}

/* What the kernel empties in a child: nv_unnoticed_child. */
NV_LARGE struct nv_emptied nv_emptied;
bool nv_armed;

/* nv_arm is called before there is anything that a child must not go on with. */
void nv_arm(void)
{
	if (nv_armed)
		return;
	nv_emptied.mine = 1;
	madvise(&nv_emptied, sizeof nv_emptied, MADV_WIPEONFORK); /* since Linux 4.14 */
	nv_armed = true;
}

/* How many nv_hold this thread is in, and what it blocked before the first. */
static __thread unsigned held __attribute__((tls_model("initial-exec")));
static __thread uint64_t held_mask __attribute__((tls_model("initial-exec")));

void nv_hold(void)
{
	uint64_t before;

	nv_block_signals(&before);
	if (held++ == 0)
		held_mask = before;
}

void nv_let_go(void)
{
	if (--held == 0)
		nv_unblock_signals(held_mask);
}
