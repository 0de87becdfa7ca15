/* Signals that come.
 *
 * Go needs those of faults: a bad buffer of the application's is EFAULT by a fault in
 * Go's code (fault.go). It would pass on what is not its own, but not a signal that
 * was sent, nor twice if the handler jumps out; and an application that sets a handler
 * later would take the signals from Go. Here they are told apart.
 *
 * A signal does not interrupt a call on a file of ours: its handler, which may use
 * such files or leave by siglongjmp, runs when the call is done. So it is on a local
 * file system. The thread takes no further signal until then (nv_deliver).
 *
 * The kernel calls nv_signalled on the alternate stack (stacks.c). The application's
 * handler runs after its return, on the stack that it would have (frame.c), unless that
 * is this one or the runtime is what it interrupts. */
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel.h"
#include "machine.h"
#include "nv.h"

static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE};

#define FAULTS (sizeof faults / sizeof *faults)

/* Go's handlers of faults. */
static struct sigaction gos[FAULTS];

/* fault returns where a signal is in faults, or FAULTS. */
static size_t fault(int signum)
{
	size_t i = 0;

	while (i < FAULTS && faults[i] != signum)
		i++;
	return i;
}

/* copy_mask copies what there is of a mask in a context: the kernel's are shorter than
 * the C library's, and other things follow. */
static void copy_mask(sigset_t *to, const sigset_t *from)
{
	memcpy(to, from, (NSIG - 1) / 8);
}

/* ---- whose signal it is ---- */

/* A fault of the runtime, but not of a handler that has interrupted it. */
static bool of_go(int signum, siginfo_t *info, ucontext_t *context)
{
	if (info->si_code <= 0 || !nv_runtimes() || !nv_loaded() || nv_on_signal_stack((uintptr_t)NV_STACK(context)))
		return false;
	gos[fault(signum)].sa_sigaction(signum, info, context);
	return true;
}

/* Of a connection of the runtime's, which has EPIPE as well. The kernel sends it to
 * the thread as if the process itself had. */
static bool of_connection(const siginfo_t *info)
{
	return info->si_code == SI_USER && info->si_pid == getpid() && nv_runtimes();
}

/* claim says whether a signal is the runtime's, and then has done what there is to do. */
static bool claim(int signum, siginfo_t *info, ucontext_t *context)
{
	if (signum == SIGPIPE)
		return of_connection(info);
	if (signum == NV_REMASK)
		return nv_remask(info, context);
	return fault(signum) < FAULTS && of_go(signum, info, context);
}

/* ---- what the application has asked for ---- */

/* ends lets the default of a signal happen once nv_signalled has returned: a
 * fault again where it was, so that a core dump shows it. */
static void ends(int signum, const siginfo_t *info, ucontext_t *context)
{
	struct sigaction plain = {.sa_handler = SIG_DFL};

	REAL(sigaction)(signum, &plain, NULL);
	sigdelset(&context->uc_sigmask, signum);
	if (info->si_code <= 0 || (signum == SIGBUS && info->si_code == BUS_MCEERR_AO))
		REAL(syscall)(SYS_tgkill, getpid(), (pid_t)REAL(syscall)(SYS_gettid), signum);
}

/* find_mask finds what a handler runs with. entered is the mask that the kernel has come
 * with; NULL: it is no help, as all were blocked. It is not what the context has in
 * sigsuspend and its like, which have a temporary one. */
static void find_mask(sigset_t *mask, const struct sigaction *act, int signum, const ucontext_t *context,
		      const sigset_t *entered)
{
	sigemptyset(mask);
	copy_mask(mask, entered != NULL ? entered : &context->uc_sigmask);
	if (entered != NULL && (act->sa_flags & SA_NODEFER))
		sigdelset(mask, signum);
	for (int s = 1; s < NSIG; s++)
		if (sigismember(&act->sa_mask, s) == 1)
			sigaddset(mask, s);
	if (!(act->sa_flags & SA_NODEFER))
		sigaddset(mask, signum);
}

/* Signals whose handlers wait for the end of a call of this thread: the kernel may bring
 * several at a time, the last one first. More than MOST it keeps itself. And the mask that
 * the thread had. */
#define MOST 8

struct waiting {
	int signum;
	siginfo_t info;
};

static __thread struct {
	struct waiting signals[MOST];
	sigset_t mask;
	bool resumed;
} deferred __attribute__((tls_model("initial-exec")));

__thread int nv_deferred __attribute__((tls_model("initial-exec")));
__thread int nv_held __attribute__((tls_model("initial-exec")));
__thread bool nv_at_once __attribute__((tls_model("initial-exec")));

/* between says that the thread is where a handler may interrupt it. */
static bool between(void)
{
	return nv_state != NV_INSIDE && nv_held == 0;
}

/* handles calls the application's handler here. */
static void handles(const struct sigaction *act, int signum, siginfo_t *info, void *context, const sigset_t *mask)
{
	pthread_sigmask(SIG_SETMASK, mask, NULL);
	if (nv_deferred > 0 && between()) {
		/* They have interrupted nv_signalled: it is the handler that they are to interrupt. */
		deferred.mask = *mask;
		nv_deliver();
	}
	if (nv_on_signal_stack((uintptr_t)__builtin_frame_address(0)))
		nv_call_handler(act->sa_sigaction, signum, info, context);
	else /* a thread that was created unseen has none: this is where the handler would be anyway */
		nv_begin_handler(signum, info, context, act->sa_sigaction);
}

/* act_as does what the application has asked for. */
static void act_as(int signum, siginfo_t *info, ucontext_t *context, const sigset_t *entered)
{
	struct sigaction act = nv_action(signum), next = act;
	sigset_t mask;

	if (nv_handled(&act)) {
		next.sa_handler = SIG_DFL;
		if (act.sa_flags & SA_RESETHAND)
			nv_taken_action(signum, &next, NULL);
		find_mask(&mask, &act, signum, context, entered);
		if (nv_moves(context, &act))
			nv_push(&act, signum, info, context, &mask);
		else
			handles(&act, signum, info, context, &mask);
	} else if (act.sa_handler == SIG_DFL || (fault(signum) < FAULTS && info->si_code > 0)) {
		/* A fault cannot be ignored. */
		ends(signum, info, context);
	}
}

/* ---- signals that wait ---- */

extern char nv_signals_blocked[] __attribute__((visibility("hidden")));

/* entering says whether a signal has interrupted nv_signalled for another one before that
 * has blocked it. */
static bool entering(const ucontext_t *context)
{
	uintptr_t at = (uintptr_t)NV_COUNTER(context);

	return at >= (uintptr_t)nv_signalled && at < (uintptr_t)nv_signals_blocked;
}

/* waits says whether a signal can: one that the thread has brought about by what it
 * was just doing cannot. */
static bool waits(int signum, const siginfo_t *info)
{
	switch (signum) {
	case SIGSEGV:
	case SIGBUS:
	case SIGFPE:
	case SIGILL:
	case SIGTRAP:
	case SIGSYS:
		return info->si_code <= 0;
	case SIGABRT:
		return false;
	}
	return true;
}

/* defer says whether the handler has to wait. */
static bool defer(int signum, const siginfo_t *info, ucontext_t *context)
{
	static const int never[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};

	if ((between() && !entering(context)) || nv_at_once || !waits(signum, info))
		return false;
	/* What there is no room for is pending again until the others have been handled. */
	if (nv_deferred == MOST && !nv_send_here(signum, info))
		return false;
	sigset_t mask;

	/* Of several only one has come with the mask of the thread: the smallest. */
	sigemptyset(&mask);
	copy_mask(&mask, &context->uc_sigmask);
	if (nv_deferred > 0)
		sigandset(&mask, &mask, &deferred.mask);
	deferred.mask = mask;
	if (nv_deferred < MOST)
		deferred.signals[nv_deferred++] = (struct waiting){signum, *info};
	sigfillset(&mask);
	for (size_t i = 0; i < sizeof never / sizeof *never; i++)
		if (sigismember(&deferred.mask, never[i]) == 0)
			sigdelset(&mask, never[i]);
	copy_mask(&context->uc_sigmask, &mask);
	return true;
}

/* nv_deliver is called at the end of a call if nv_deferred says so. The handler has to
 * come by a signal, for its stack and its context; NV_REMASK needs no place in a queue
 * and comes before those that are there. */
void nv_deliver(void)
{
	int saved = errno;
	sigset_t remask;

	deferred.resumed = true;
	nv_send_remask();
	sigemptyset(&remask);
	sigaddset(&remask, NV_REMASK);
	pthread_sigmask(SIG_UNBLOCK, &remask, NULL); /* the others once it is handled */
	errno = saved;
}

/* resume handles what was deferred, as if it came now: a frame that is pushed last is
 * handled first. */
static void resume(ucontext_t *context)
{
	static const struct sigaction plain;
	int n = nv_deferred;
	struct waiting signals[n];
	bool moves = nv_moves(context, &plain);

	memcpy(signals, deferred.signals, sizeof signals);
	nv_deferred = 0;
	for (int i = 0; i < n; i++) {
		struct waiting *w = &signals[moves ? n - 1 - i : i];

		act_as(w->signum, &w->info, context, NULL);
	}
}

/* ---- what the kernel and Go call ---- */

static void handle(int signum, siginfo_t *info, ucontext_t *context, const sigset_t *entered)
{
	if (signum == NV_REMASK && deferred.resumed) {
		deferred.resumed = false;
		copy_mask(&context->uc_sigmask, &deferred.mask);
		resume(context);
		if (nv_sent_here(info))
			return;
		/* It has been lost in one of the application's, which may be blocked. */
		if (sigismember(&deferred.mask, NV_REMASK) == 1 && nv_send_here(signum, info))
			return;
	}
	if (!claim(signum, info, context)) {
		if (defer(signum, info, context))
			return;
		act_as(signum, info, context, entered);
	}
	if (nv_deferred > 0 && between())
		resume(context); /* they have come on the way here */
}

/* nv_signalled begins with a signal's own mask, so another one may interrupt it, until it
 * blocks all. */
__attribute__((noinline, noclone)) void nv_signalled(int signum, siginfo_t *info, void *context)
{
	uint64_t mask = ~UINT64_C(0);
	sigset_t before;

	nv_kernel(SYS_rt_sigprocmask, SIG_SETMASK, &mask, &mask, sizeof mask);
	__asm__ volatile(".hidden nv_signals_blocked\n.globl nv_signals_blocked\nnv_signals_blocked:");
	sigemptyset(&before);
	memcpy(&before, &mask, sizeof mask);
	if (nv_deferred > 0 && between())
		before = deferred.mask;
	handle(signum, info, context, signum == NV_REMASK ? NULL : &before);
}

/* passed_on is called by Go for a fault that is not its own. */
static void passed_on(int signum, siginfo_t *info, void *context)
{
	act_as(signum, info, context, NULL);
}

/* nv_gos_action is sigaction where Go calls it as it is loaded; false: it is to have
 * what it asks for. SIGURG it would send to threads, to stop them, but is told not
 * to (shim.mk). */
bool nv_gos_action(int signum, const struct sigaction *act, struct sigaction *old)
{
	size_t i = fault(signum);

	if (signum != SIGURG && signum != SIGPIPE && i == FAULTS)
		return false;
	if (old != NULL) {
		memset(old, 0, sizeof *old);
		/* So Go passes on a fault in C that it has called. */
		if (i < FAULTS)
			old->sa_sigaction = passed_on;
	}
	if (act != NULL && i < FAULTS)
		gos[i] = *act;
	return true;
}
