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
 * without a word. One that somebody sends to the application is passed to that. */
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "nv.h"

/* What Go unblocks of the application's. 34 is SIGRTMIN, which musl has for itself. */
static const int let_through[] = {SIGCHLD, NV_REMASK, SIGILL, SIGTRAP, SIGSTKFLT, SIGSYS, 34};

#define COUNT (sizeof let_through / sizeof *let_through)

/* What Go needs for faults in its own code, and for EFAULT. */
static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE};

/* Which of let_through this thread blocks; expected: NV_REMASK is under way. */
static __thread bool keep[COUNT] __attribute__((tls_model("initial-exec")));
static __thread volatile bool expected __attribute__((tls_model("initial-exec")));

/* What the application has asked for NV_REMASK, once taken. Set with signals blocked. */
static struct sigaction theirs;
static bool taken;

/* stranger does what the application wants of a NV_REMASK that is not ours. */
static void stranger(int signum, siginfo_t *info, ucontext_t *context)
{
	struct sigaction plain = {.sa_handler = SIG_DFL};

	if (theirs.sa_flags & SA_SIGINFO) {
		theirs.sa_sigaction(signum, info, context);
	} else if (theirs.sa_handler == SIG_DFL) {
		/* It ends the process as soon as this handler is done. */
		REAL(sigaction)(signum, &plain, NULL);
		sigdelset(&context->uc_sigmask, signum);
		REAL(syscall)(SYS_tgkill, getpid(), (pid_t)REAL(syscall)(SYS_gettid), signum);
	} else if (theirs.sa_handler != SIG_IGN) {
		theirs.sa_handler(signum);
	}
}

static void remask(int signum, siginfo_t *info, void *context)
{
	ucontext_t *c = context;
	int saved = errno;
	bool ours = expected;

	expected = false;
	for (size_t i = 0; i < COUNT; i++)
		if (ours && keep[i])
			sigaddset(&c->uc_sigmask, let_through[i]);
	/* Ours is lost in one that a timer of the application's has sent to the thread before. */
	if (!ours || info->si_code != SI_TKILL || info->si_pid != getpid())
		stranger(signum, info, c);
	errno = saved;
}

/* install sets the handler, which interrupts system calls as theirs does. */
static bool install(void)
{
	struct sigaction act = {.sa_sigaction = remask, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};

	if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN && !(theirs.sa_flags & SA_RESTART))
		act.sa_flags &= ~SA_RESTART;
	sigfillset(&act.sa_mask);
	return REAL(sigaction)(NV_REMASK, &act, NULL) == 0;
}

/* nv_take_remask is called before the runtime is loaded, with signals blocked. */
void nv_take_remask(void)
{
	taken = taken || (REAL(sigaction)(NV_REMASK, NULL, &theirs) == 0 && install());
}

/* nv_remask_action is sigaction for NV_REMASK; false: it is not taken. */
bool nv_remask_action(const struct sigaction *act, struct sigaction *old)
{
	sigset_t all, before;

	if (!taken)
		return false;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	struct sigaction was = theirs;

	if (act != NULL) {
		theirs = *act;
		install();
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (old != NULL)
		*old = was;
	return true;
}

/* adopt takes NV_REMASK again after somebody has set an action past our wrapper, as
 * glibc does itself when it ends a profile. */
static void adopt(void)
{
	struct sigaction now;

	if (!taken || REAL(sigaction)(NV_REMASK, NULL, &now) != 0 || now.sa_sigaction == remask)
		return;
	theirs = now;
	install();
}

/* nv_before_exec makes a program that is executed ignore NV_REMASK where the
 * application does: a handler would be the default there. */
void nv_before_exec(void)
{
	int saved = errno;

	if (taken && theirs.sa_handler == SIG_IGN)
		REAL(sigaction)(NV_REMASK, &theirs, NULL);
	errno = saved;
}

void nv_after_exec(void)
{
	int saved = errno;

	adopt();
	errno = saved;
}

/* nv_expect_go is called with signals blocked, on a thread on which Go is about
 * to set the mask; blocked is what it is to be as far as Go lets it. */
void nv_expect_go(const sigset_t *blocked)
{
	for (size_t i = 0; i < COUNT; i++)
		keep[i] = sigismember(blocked, let_through[i]) == 1;
	adopt();
	expected = true;
	REAL(syscall)(SYS_tgkill, getpid(), (pid_t)REAL(syscall)(SYS_gettid), NV_REMASK);
}

/* nv_restore_mask gives a thread on which Go has been the mask it had. */
void nv_restore_mask(const sigset_t *before)
{
	sigset_t mask = *before;

	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		sigdelset(&mask, faults[i]);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
}
