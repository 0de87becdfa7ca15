/* Signals of faults: SIGSEGV, SIGBUS, SIGFPE.
 *
 * Go finds a bad buffer of the application's by a fault in its own code (fault.go), and
 * the application may have handlers of these signals, too. Once a runtime is loaded the
 * kernel has one handler for both, on_fault, which tells them apart by what the thread was
 * in. All other signals are the application's alone: they are blocked while a thread is
 * inside the runtime (nv_block_signals), and in the runtime's own threads.
 *
 * on_fault runs on the alternate stack, which Go requires (stack.c). So do the
 * application's handlers of these three signals, then.
 *
 * An action is the whole process's. Any thread may set it while others read it in their handlers, so both are done under a
 * lock, by threads that no other signal interrupts. */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE};

#define FAULTS (sizeof faults / sizeof *faults)

static struct {
	struct sigaction application, runtime;
} actions[FAULTS];

static atomic_flag lock = ATOMIC_FLAG_INIT;
static _Atomic bool taken;

/* fault returns where a signal is in faults, or FAULTS. */
static size_t fault(int signum)
{
	size_t i = 0;

	while (i < FAULTS && faults[i] != signum)
		i++;
	return i;
}

static bool handled(const struct sigaction *act)
{
	return act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN;
}

static uint64_t take_lock(void)
{
	uint64_t before;

	nv_block_signals(&before);
	while (atomic_flag_test_and_set(&lock))
		sched_yield();
	return before;
}

static void give_lock(uint64_t before)
{
	atomic_flag_clear(&lock);
	nv_unblock_signals(before);
}

/* ---- a fault ---- */

/* ends lets the default of a signal happen once on_fault has returned: a fault again
 * where it was, so that a core dump shows it. */
static void ends(int signum, const siginfo_t *info, ucontext_t *context)
{
	struct sigaction plain = {.sa_handler = SIG_DFL};

	REAL(sigaction)(signum, &plain, NULL);
	sigdelset(&context->uc_sigmask, signum);
	if (info->si_code <= 0 || (signum == SIGBUS && info->si_code == BUS_MCEERR_AO))
		nv_kernel(SYS_tgkill, getpid(), nv_kernel(SYS_gettid), signum);
}

/* act does what the application has asked for. The kernel has blocked what the
 * application's action blocks (install). */
static void act(size_t i, siginfo_t *info, void *context)
{
	uint64_t before = take_lock();
	struct sigaction act = actions[i].application, next = act;

	give_lock(before);
	if (handled(&act)) {
		next.sa_handler = SIG_DFL;
		if (act.sa_flags & SA_RESETHAND)
			nv_fault_action(faults[i], &next, NULL);
		act.sa_sigaction(faults[i], info, context); /* one without SA_SIGINFO has the kernel's arguments, too */
	} else if (act.sa_handler == SIG_DFL || info->si_code > 0) {
		ends(faults[i], info, context); /* a fault cannot be ignored */
	}
}

/* passed_on is called by Go for a fault that is not its own. */
static void passed_on(int signum, siginfo_t *info, void *context)
{
	act(fault(signum), info, context);
}

static void on_fault(int signum, siginfo_t *info, void *context)
{
	size_t i = fault(signum);
	int saved = errno;

	if (info->si_code > 0 && nv_runtimes() && nv_loaded())
		actions[i].runtime.sa_sigaction(signum, info, context);
	else
		act(i, info, context);
	errno = saved;
}

/* ---- what the kernel is told ---- */

/* install has the kernel call on_fault, in a way that the application has asked for. */
static void install(size_t i, const struct sigaction *asked)
{
	struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	sigemptyset(&act.sa_mask);
	if (handled(asked)) {
		act.sa_mask = asked->sa_mask;
		act.sa_flags |= asked->sa_flags & (SA_NODEFER | SA_RESTART);
	} else {
		act.sa_flags |= SA_RESTART;
	}
	REAL(sigaction)(faults[i], &act, NULL);
	actions[i].application = *asked;
}

/* nv_fault_action is sigaction for a signal of faults once a runtime is loaded; false: it
 * is another one, or a child of vfork asks, whose actions are its own, but not the memory. */
bool nv_fault_action(int signum, const struct sigaction *act, struct sigaction *old)
{
	size_t i = fault(signum);

	if (i == FAULTS || !atomic_load(&taken) || !nv_own_memory())
		return false;
	const struct sigaction asked = act != NULL ? *act : (struct sigaction){0};
	uint64_t before = take_lock();
	const struct sigaction was = actions[i].application;

	if (act != NULL)
		install(i, &asked);
	give_lock(before);
	if (old != NULL)
		*old = was;
	return true;
}

/* nv_take_faults is called before a runtime is loaded. */
void nv_take_faults(void)
{
	struct sigaction was;

	if (atomic_exchange(&taken, true))
		return;
	uint64_t before = take_lock();

	for (size_t i = 0; i < FAULTS; i++)
		if (REAL(sigaction)(faults[i], NULL, &was) == 0)
			install(i, &was);
	give_lock(before);
}

/* nv_forget_actions is called in a forked child, whose parent's other threads may have
 * had the lock. */
void nv_forget_actions(void)
{
	atomic_flag_clear(&lock);
}

/* nv_runtimes_action is sigaction as the runtime is loaded: it learns of no handler, and the kernel of none of its
 * own. What is loaded with it may ask, too; Go is the last. */
int nv_runtimes_action(int signum, const struct sigaction *act, struct sigaction *old)
{
	size_t i = fault(signum);

	if (old != NULL) {
		memset(old, 0, sizeof *old);
		if (i < FAULTS)
			old->sa_sigaction = passed_on; /* a fault in C that Go has called */
	}
	if (act != NULL && i < FAULTS)
		actions[i].runtime = *act;
	return 0;
}
