/* Fault signals: SIGSEGV, SIGBUS, SIGFPE.
 *
 * Both the application and Go may handle these signals. Go finds a bad buffer of the application by a fault in its own code
 * (fault.go). Once a runtime is loaded the kernel has one handler, on_fault. That calls Go's handler if the thread was inside the
 * runtime, and otherwise does what the application has asked for. All other signals are the application's alone: they are
 * blocked while a thread is inside the runtime (nv_block_signals), and in the runtime's own threads.
 *
 * on_fault runs on the alternate signal stack, which Go requires (stack.c). The application's handlers of these three signals
 * then run there too.
 *
 * The lock guards actions, which belong to the process. A thread blocks signals while it has the lock, so no handler waits
 * for a lock of its own thread. Go's actions are the exception: they are written while the runtime is loaded. */
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
static _Atomic bool installed; /* the kernel calls on_fault */

/* index_of returns the index of a signal in faults, or FAULTS. */
static size_t index_of(int signum)
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

static void release_lock(uint64_t before)
{
	atomic_flag_clear(&lock);
	nv_unblock_signals(before);
}

/* ---- a fault ---- */

/* restore_default restores the default action. When on_fault returns, the instruction faults again, so a core dump shows
 * where the fault was. A signal that no instruction has raised is sent again. */
static void restore_default(int signum, const siginfo_t *info, ucontext_t *context)
{
	struct sigaction standard = {.sa_handler = SIG_DFL};

	REAL(sigaction)(signum, &standard, NULL);
	sigdelset(&context->uc_sigmask, signum);
	if (info->si_code <= 0 || (signum == SIGBUS && info->si_code == BUS_MCEERR_AO))
		nv_kernel(SYS_tgkill, getpid(), nv_kernel(SYS_gettid), signum);
}

/* act performs the application's action. The kernel has already blocked the signals in sa_mask of that (install). */
static void act(size_t i, siginfo_t *info, void *context)
{
	uint64_t before = take_lock();
	struct sigaction act = actions[i].application, next = act;

	release_lock(before);
	if (handled(&act)) {
		next.sa_handler = SIG_DFL;
		if (act.sa_flags & SA_RESETHAND)
			nv_fault_action(faults[i], &next, NULL);
		act.sa_sigaction(faults[i], info, context); /* a handler without SA_SIGINFO ignores the last two */
	} else if (act.sa_handler == SIG_DFL || info->si_code > 0) {
		restore_default(faults[i], info, context); /* a fault cannot be ignored */
	}
}

/* forward is the handler that Go believes the application has. Go calls it for faults outside Go code. */
static void forward(int signum, siginfo_t *info, void *context)
{
	act(index_of(signum), info, context);
}

static void on_fault(int signum, siginfo_t *info, void *context)
{
	size_t i = index_of(signum);
	int saved = errno;

	if (info->si_code > 0 && nv_in_runtime() && nv_loaded())
		actions[i].runtime.sa_sigaction(signum, info, context);
	else
		act(i, info, context);
	errno = saved;
}

/* ---- actions ---- */

/* install makes on_fault the handler in the kernel, with the mask and flags of the application's action. The caller has the
 * lock. */
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

/* nv_fault_action is sigaction for a fault signal once a runtime is loaded. It returns false, and does nothing, for all other
 * signals, and in a child of vfork: that has actions of its own in the kernel, but shares this memory. */
bool nv_fault_action(int signum, const struct sigaction *act, struct sigaction *old)
{
	size_t i = index_of(signum);

	if (i == FAULTS || !atomic_load(&installed) || !nv_owns_memory())
		return false;
	const struct sigaction asked = act != NULL ? *act : (struct sigaction){0};
	uint64_t before = take_lock();
	const struct sigaction was = actions[i].application;

	if (act != NULL)
		install(i, &asked);
	release_lock(before);
	if (old != NULL)
		*old = was;
	return true;
}

/* nv_install_fault_handlers is called before a runtime is loaded. Later calls do nothing. */
void nv_install_fault_handlers(void)
{
	struct sigaction was;

	if (atomic_exchange(&installed, true))
		return;
	uint64_t before = take_lock();

	for (size_t i = 0; i < FAULTS; i++)
		if (REAL(sigaction)(faults[i], NULL, &was) == 0)
			install(i, &was);
	release_lock(before);
}

/* nv_forget_actions is called in a forked child. Another thread of the parent may have had the lock. */
void nv_forget_actions(void)
{
	atomic_flag_clear(&lock);
}

/* nv_runtime_sigaction is sigaction for the thread that loads the runtime. It reports the handler forward for fault signals
 * and none for all others. It keeps Go's actions for fault signals and installs nothing. A library that is loaded with the
 * runtime may call it too, before Go does: the last action counts. */
int nv_runtime_sigaction(int signum, const struct sigaction *act, struct sigaction *old)
{
	size_t i = index_of(signum);

	if (old != NULL) {
		memset(old, 0, sizeof *old);
		if (i < FAULTS)
			old->sa_sigaction = forward; /* a fault in C that Go has called */
	}
	if (act != NULL && i < FAULTS)
		actions[i].runtime = *act;
	return 0;
}
