/* The application's actions for signals that the runtime needs as well.
 *
 * Go takes the signals of faults: a bad buffer of the application's is EFAULT by a
 * fault in Go's code (fault.go). It would pass on what is not its own, but not a
 * signal that was sent, nor twice if the handler jumps out; and an application
 * that sets a handler later would take the signals from Go. So the kernel knows
 * one handler for them, here, which gives Go the faults of the runtime's own code
 * and does with the others what the application has asked for. Neither sees the
 * other: sigaction shows what the application has set.
 *
 * Every action is the one of the whole process. Any thread may set it, in a handler,
 * too, while others read it in theirs: `version` is odd while one is written, by a
 * thread that no signal interrupts. */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "nv.h"

/* What is taken: those of faults in memory, of which probes (there.c) have some, and
 * while a runtime is loaded the others. */
static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGPIPE, NV_REMASK};

#define PROBES 2
#define FAULTS 3
#define COUNT (sizeof signals / sizeof *signals)

static struct taken {
	int signum; /* 0: it is not */
	struct sigaction theirs; /* the application's */
	struct sigaction gos;    /* Go's, for faults */
} taken[COUNT];

static _Atomic unsigned version;

/* find is NULL for a signal that we never take. */
static struct taken *find(int signum)
{
	for (size_t i = 0; i < COUNT; i++)
		if (signals[i] == signum)
			return &taken[i];
	return NULL;
}

static bool handled(const struct sigaction *act)
{
	return act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN;
}

/* ---- whose signal it is ---- */

static uintptr_t stack_pointer(const ucontext_t *context)
{
#if defined(__x86_64__)
	return (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
	return (uintptr_t)context->uc_mcontext.sp;
#else
#error "where does this machine keep the stack pointer?"
#endif
}

/* A fault of the runtime, but not of a handler that has interrupted it. */
static bool of_go(int signum, siginfo_t *info, ucontext_t *context)
{
	if (info->si_code <= 0 || !nv_runtimes() || !nv_loaded() || nv_on_signal_stack(stack_pointer(context)))
		return false;
	find(signum)->gos.sa_sigaction(signum, info, context);
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
	if (info->si_code > 0 && nv_mend_probe(context))
		return true;
	switch (signum) {
	case SIGPIPE:
		return of_connection(info);
	case NV_REMASK:
		return nv_remask(info, context);
	default:
		return of_go(signum, info, context);
	}
}

/* ---- what the application has asked for ---- */

static struct sigaction asked(const struct taken *t)
{
	struct sigaction act;
	unsigned before;

	do {
		while ((before = atomic_load(&version)) & 1)
			sched_yield();
		act = t->theirs;
		atomic_thread_fence(memory_order_acquire);
	} while (atomic_load(&version) != before);
	return act;
}

/* ends lets the default of a signal happen once this handler has returned: a
 * fault again where it was, so that a core dump shows it. */
static void ends(int signum, const siginfo_t *info, ucontext_t *context)
{
	struct sigaction plain = {.sa_handler = SIG_DFL};

	REAL(sigaction)(signum, &plain, NULL);
	sigdelset(&context->uc_sigmask, signum);
	if (info->si_code <= 0 || (signum == SIGBUS && info->si_code == BUS_MCEERR_AO))
		REAL(syscall)(SYS_tgkill, getpid(), (pid_t)REAL(syscall)(SYS_gettid), signum);
}

/* handles calls the application's handler with the mask that it has asked for. */
static void handles(const struct sigaction *act, int signum, siginfo_t *info, ucontext_t *context)
{
	sigset_t mask = context->uc_sigmask;

	for (int s = 1; s < NSIG; s++)
		if (sigismember(&act->sa_mask, s) == 1)
			sigaddset(&mask, s);
	if (!(act->sa_flags & SA_NODEFER))
		sigaddset(&mask, signum);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	if (act->sa_flags & SA_SIGINFO)
		act->sa_sigaction(signum, info, context);
	else
		act->sa_handler(signum);
}

/* theirs does what the application has asked for. */
static void theirs(int signum, siginfo_t *info, void *context)
{
	struct sigaction act = asked(find(signum)), next = act;

	if (handled(&act)) {
		next.sa_handler = SIG_DFL;
		if (act.sa_flags & SA_RESETHAND)
			nv_taken_action(signum, &next, NULL);
		handles(&act, signum, info, context);
	} else if (act.sa_handler == SIG_DFL || info->si_code > 0) {
		/* A fault cannot be ignored. */
		ends(signum, info, context);
	}
}

static void handle(int signum, siginfo_t *info, void *context)
{
	if (!claim(signum, info, context))
		theirs(signum, info, context);
}

/* install tells the kernel, whose system calls are interrupted as the application
 * wants it. */
static bool install(const struct taken *t)
{
	struct sigaction act = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};

	if (handled(&t->theirs) && !(t->theirs.sa_flags & SA_RESTART))
		act.sa_flags &= ~SA_RESTART;
	/* Then programs that are executed ignore it, too. */
	if (t->signum == SIGPIPE && t->theirs.sa_handler == SIG_IGN)
		act = t->theirs;
	sigfillset(&act.sa_mask);
	return REAL(sigaction)(t->signum, &act, NULL) == 0;
}

/* adopt takes a signal again after somebody has set an action past our wrapper, as
 * glibc does itself in sigignore and when it ends a profile. */
static void adopt(struct taken *t)
{
	struct sigaction now;

	if (REAL(sigaction)(t->signum, NULL, &now) != 0 || now.sa_sigaction == handle)
		return;
	t->theirs = now;
	install(t);
}

static unsigned begin(sigset_t *before)
{
	unsigned even;
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
	do {
		while ((even = atomic_load(&version)) & 1)
			sched_yield();
	} while (!atomic_compare_exchange_weak(&version, &even, even + 1));
	return even + 2;
}

static void end(unsigned even, const sigset_t *before)
{
	atomic_store(&version, even);
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* of_vfork is sigaction in a child of vfork, whose actions are its own, but not the
 * memory that they are kept in. */
static bool of_vfork(const struct taken *t, const struct sigaction *act, struct sigaction *old)
{
	struct sigaction now;

	if (REAL(sigaction)(t->signum, act, &now) == 0 && old != NULL)
		*old = now.sa_sigaction == handle ? t->theirs : now;
	return true;
}

/* nv_taken_action is sigaction for a signal that is taken; false: it is not. */
bool nv_taken_action(int signum, const struct sigaction *act, struct sigaction *old)
{
	struct taken *t = find(signum);
	struct sigaction was;
	sigset_t before;

	if (t == NULL || t->signum == 0)
		return false;
	if (!nv_own_memory())
		return of_vfork(t, act, old);
	unsigned even = begin(&before);

	adopt(t);
	was = t->theirs;
	if (act != NULL) {
		t->theirs = *act;
		install(t);
	}
	end(even, &before);
	if (old != NULL)
		*old = was;
	return true;
}

bool nv_taken(int signum)
{
	const struct taken *t = find(signum);

	return t != NULL && t->signum != 0;
}

/* nv_take_signals is called before main, and before a runtime is loaded, with signals
 * blocked. */
void nv_take_signals(bool all)
{
	for (size_t i = 0; i < (all ? COUNT : PROBES); i++) {
		struct taken *t = &taken[i];

		if (t->signum != 0)
			continue;
		t->signum = signals[i];
		if (REAL(sigaction)(t->signum, NULL, &t->theirs) != 0 || !install(t))
			t->signum = 0;
	}
}

/* nv_forget_actions is called in a forked child, whose parent's other threads may
 * have been writing. */
void nv_forget_actions(void)
{
	if (atomic_load(&version) & 1)
		atomic_fetch_add(&version, 1);
}

/* nv_gos_action is sigaction where Go calls it as it is loaded; false: it is to have
 * what it asks for. SIGURG it would send to threads, to stop them, but is told not
 * to (shim.mk). */
bool nv_gos_action(int signum, const struct sigaction *act, struct sigaction *old)
{
	struct taken *t = find(signum);
	bool fault = t != NULL && t < &taken[FAULTS];

	if (signum != SIGURG && signum != SIGPIPE && !fault)
		return false;
	if (old != NULL) {
		memset(old, 0, sizeof *old);
		/* So Go passes on a fault in C that it has called. */
		if (fault)
			old->sa_sigaction = theirs;
	}
	if (act != NULL && fault)
		t->gos = *act;
	return true;
}

/* ignore makes a program that is executed ignore what the application does: a
 * handler would be the default there. */
static void ignore(size_t first)
{
	int saved = errno;

	for (size_t i = first; i < COUNT; i++)
		if (nv_taken(signals[i]) && taken[i].theirs.sa_handler == SIG_IGN)
			REAL(sigaction)(signals[i], &taken[i].theirs, NULL);
	errno = saved;
}

void nv_before_exec(void)
{
	ignore(0);
}

/* nv_before_spawn is the same where this process goes on: the runtime may have faults. */
void nv_before_spawn(void)
{
	ignore(nv_loaded() ? FAULTS : 0);
}

void nv_after_exec(void)
{
	int saved = errno;

	for (size_t i = 0; i < COUNT; i++)
		if (nv_taken(signals[i]) && taken[i].theirs.sa_handler == SIG_IGN)
			nv_taken_action(signals[i], NULL, NULL);
	errno = saved;
}
