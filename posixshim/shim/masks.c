/* Which signals a thread takes once Go has been on it.
 *
 * Go unblocks some signals on its own threads, and on each other one when that
 * calls it for the first time. Some are those of faults, which Go needs. But
 * SIGCHLD, SIGRTMIN and others are the application's. One that blocks SIGCHLD in
 * all its threads and waits for it, in sigsuspend, ppoll, sigwait or by a signalfd,
 * would lose it to a thread of the runtime, where nobody waits; its handler
 * would run there, on a small stack that it must not jump out of; and SIGRTMIN
 * would end the process.
 *
 * Go sets the mask by a system call of its own, which cannot be replaced. So
 * a thread on which it will do so blocks NV_REMASK, one of those that Go unblocks,
 * and sends it to itself. The kernel delivers it as soon as Go unblocks it and,
 * because it is the thread's, before any of the process; and the handler blocks
 * again what the thread had blocked. NV_REMASK is SIGPROF, which debuggers let pass
 * without a word. One that is the application's is passed to that (actions.c). */
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* What Go unblocks of the application's. 34 is SIGRTMIN, which musl has for itself. */
static const int let_through[] = {SIGCHLD, NV_REMASK, SIGILL, SIGTRAP, SIGSTKFLT, SIGSYS, 34};

#define COUNT (sizeof let_through / sizeof *let_through)

/* What Go needs for faults in its own code, and for EFAULT. */
static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE};

/* Which of let_through this thread blocks; expected: NV_REMASK is under way. */
static __thread bool keep[COUNT] __attribute__((tls_model("initial-exec")));
static __thread volatile bool expected __attribute__((tls_model("initial-exec")));

/* nv_remask is what NV_REMASK is for. */
bool nv_remask(const siginfo_t *info, ucontext_t *context)
{
	bool ours = expected;

	expected = false;
	for (size_t i = 0; i < COUNT; i++)
		if (ours && keep[i])
			sigaddset(&context->uc_sigmask, let_through[i]);
	/* Ours is lost in one that the application has sent to the thread before. */
	return ours && nv_sent_here(info);
}

/* nv_send_here sends a signal to this very thread, with what came with it. */
bool nv_send_here(int signum, const siginfo_t *info)
{
	return nv_kernel(SYS_rt_tgsigqueueinfo, getpid(), nv_kernel(SYS_gettid), signum, info) == 0;
}

#define OURS 0x4e56     /* a code that nobody else sends */
static bool plain_ours; /* the kernel does not let us have it */

/* nv_send_remask sends NV_REMASK to this thread. If one of the application's is under way, it
 * is that which comes. */
void nv_send_remask(void)
{
	static const siginfo_t info = {.si_signo = NV_REMASK, .si_code = OURS};

	if (nv_send_here(NV_REMASK, &info))
		return;
	plain_ours = true;
	nv_kernel(SYS_tgkill, getpid(), nv_kernel(SYS_gettid), NV_REMASK);
}

/* nv_sent_here says whether it is the one that nv_send_remask has sent. Where the user has
 * too many signals under way the kernel says nothing of it. */
bool nv_sent_here(const siginfo_t *info)
{
	return info->si_code == OURS || (info->si_code == SI_USER && info->si_pid == 0) ||
	       (plain_ours && info->si_code == SI_TKILL && info->si_pid == getpid());
}

/* nv_expect_go is called with signals blocked, on a thread on which Go is about
 * to set the mask; blocked is what it is to be as far as Go lets it. */
void nv_expect_go(const sigset_t *blocked)
{
	for (size_t i = 0; i < COUNT; i++)
		keep[i] = sigismember(blocked, let_through[i]) == 1;
	nv_taken_action(NV_REMASK, NULL, NULL); /* it may be somebody else's meanwhile */
	expected = true;
	nv_send_remask();
}

/* nv_restore_mask gives a thread on which Go has been the mask it had. */
void nv_restore_mask(const sigset_t *before)
{
	sigset_t mask = *before;

	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		sigdelset(&mask, faults[i]);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
}
