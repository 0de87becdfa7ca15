/* The application's actions for signals.
 *
 * Once a runtime is loaded, the kernel has one handler for all signals that the
 * application handles, this one. It sees to three things.
 *
 * Go needs the signals of faults: a bad buffer of the application's is EFAULT by a
 * fault in Go's code (fault.go). It would pass on what is not its own, but not a
 * signal that was sent, nor twice if the handler jumps out; and an application
 * that sets a handler later would take the signals from Go. Here they are told apart.
 * Neither sees the other: sigaction shows what the application has set.
 *
 * A signal does not interrupt a call on a file of ours: its handler, which may use
 * such files or leave by siglongjmp, runs when the call is done. So it is on a local
 * file system. The thread takes no further signal until then (nv_deliver).
 *
 * Handlers run on the alternate stack (signals.c).
 *
 * An action is the whole process's. Any thread may set it, in a handler, too, while
 * others read it in theirs: `version` is odd while one is written, by a thread that
 * no signal interrupts. */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "nv.h"

/* These are the runtime's whatever the application asks for: those of faults in memory
 * before main, for probes (there.c), the others while a runtime is loaded. */
static const int needed[] = {SIGSEGV, SIGBUS, SIGFPE, SIGPIPE, NV_REMASK};

#define PROBES 2
#define FAULTS 3
#define NEEDED (sizeof needed / sizeof *needed)

/* What our handler stands for where the kernel has it: what the application has asked
 * for last, or a handler before that, which the C library puts back (in system(3)). */
NV_EARLY_TABLE(2) static struct action {
	struct sigaction act;
	bool known;
	bool kept; /* the kernel has our handler whatever the application asks for */
} actions[NSIG];

/* Go's handlers of faults, in the order of needed. */
static struct sigaction gos[FAULTS];

static _Atomic unsigned version;

/* place returns where a signal is in needed, or NEEDED. */
static size_t place(int signum)
{
	size_t i = 0;

	while (i < NEEDED && needed[i] != signum)
		i++;
	return i;
}

static bool handled(const struct sigaction *act)
{
	return act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN;
}

/* copy_mask copies what there is of a mask in a context: the kernel's are shorter than
 * the C library's, and other things follow. */
static void copy_mask(sigset_t *to, const sigset_t *from)
{
	memcpy(to, from, (NSIG - 1) / 8);
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
	gos[place(signum)].sa_sigaction(signum, info, context);
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
	return place(signum) < FAULTS && ((info->si_code > 0 && nv_mend_probe(context)) || of_go(signum, info, context));
}

/* ---- what the application has asked for ---- */

static struct sigaction asked(int signum)
{
	struct sigaction act;
	unsigned before;

	do {
		while ((before = atomic_load(&version)) & 1)
			sched_yield();
		act = actions[signum].act;
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

/* set_mask is for the signals that are needed, whose handler begins with all blocked,
 * and for those that were. The kernel sees to the masks of the others: they may come in
 * sigsuspend and its like, which have a temporary one. */
static void set_mask(const struct sigaction *act, int signum, const ucontext_t *context)
{
	sigset_t mask;

	sigemptyset(&mask);
	copy_mask(&mask, &context->uc_sigmask);
	for (int s = 1; s < NSIG; s++)
		if (sigismember(&act->sa_mask, s) == 1)
			sigaddset(&mask, s);
	if (!(act->sa_flags & SA_NODEFER))
		sigaddset(&mask, signum);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

/* let_in lets a signal in whose handler is to be interrupted by it. The kernel would do
 * so too early: before it is deferred. */
static void let_in(int signum)
{
	sigset_t one;

	sigemptyset(&one);
	sigaddset(&one, signum);
	pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

/* handles calls the application's handler. */
static void handles(const struct sigaction *act, int signum, siginfo_t *info, ucontext_t *context)
{
	/* What a call has left for its caller, who has not taken it yet. */
	int descriptor = nv_far_descriptor;
	size_t n = strlen(nv_outside) + 1;
	char outside[n];

	memcpy(outside, nv_outside, n);
	if (act->sa_flags & SA_SIGINFO)
		act->sa_sigaction(signum, info, context);
	else
		act->sa_handler(signum);
	memcpy(nv_outside, outside, n);
	nv_far_descriptor = descriptor;
}

/* act_as does what the application has asked for. resumed says that the signal has been
 * deferred. */
static void act_as(int signum, siginfo_t *info, void *context, bool resumed)
{
	struct sigaction act = asked(signum), next = act;

	if (handled(&act)) {
		next.sa_handler = SIG_DFL;
		if (act.sa_flags & SA_RESETHAND)
			nv_taken_action(signum, &next, NULL);
		if (actions[signum].kept || resumed)
			set_mask(&act, signum, context);
		else if ((act.sa_flags & SA_NODEFER) && !sigismember(&act.sa_mask, signum))
			let_in(signum);
		handles(&act, signum, info, context);
	} else if (act.sa_handler == SIG_DFL || (place(signum) < FAULTS && info->si_code > 0)) {
		/* A fault cannot be ignored. */
		ends(signum, info, context);
	}
}

static void theirs(int signum, siginfo_t *info, void *context)
{
	act_as(signum, info, context, false);
}

/* Signals whose handlers wait for the end of a call of this thread: the kernel may bring
 * several at a time, the last one first. And the mask that the thread had. */
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

	if ((nv_state != NV_INSIDE && nv_held == 0) || nv_deferred == MOST || nv_at_once || !waits(signum, info))
		return false;
	sigset_t mask;

	/* Of several only one has come with the mask of the thread: the smallest. */
	sigemptyset(&mask);
	copy_mask(&mask, &context->uc_sigmask);
	if (nv_deferred > 0)
		sigandset(&mask, &mask, &deferred.mask);
	deferred.mask = mask;
	deferred.signals[nv_deferred].info = *info;
	deferred.signals[nv_deferred++].signum = signum;
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
	REAL(syscall)(SYS_tgkill, getpid(), (pid_t)REAL(syscall)(SYS_gettid), NV_REMASK);
	sigemptyset(&remask);
	sigaddset(&remask, NV_REMASK);
	pthread_sigmask(SIG_UNBLOCK, &remask, NULL); /* the others once it is handled */
	errno = saved;
}

/* resume handles what was deferred, as if it came now. */
static void resume(ucontext_t *context)
{
	int n = nv_deferred;
	struct waiting signals[n];

	memcpy(signals, deferred.signals, sizeof signals);
	copy_mask(&context->uc_sigmask, &deferred.mask);
	nv_deferred = 0;
	for (int i = 0; i < n; i++)
		act_as(signals[i].signum, &signals[i].info, context, true);
}

static void handle(int signum, siginfo_t *info, void *context)
{
	if (signum == NV_REMASK && deferred.resumed) {
		deferred.resumed = false;
		resume(context);
		if (nv_sent_here(info))
			return; /* or it has been lost in one of the application's */
	}
	if (!claim(signum, info, context) && !defer(signum, info, context))
		theirs(signum, info, context);
}

/* ---- what the kernel is told ---- */

/* plain says that the kernel has an action as it is. What is executed then ignores SIGPIPE
 * if the application does. */
static bool plain(int signum, const struct sigaction *act)
{
	return !handled(act) && (!actions[signum].kept || (signum == SIGPIPE && act->sa_handler == SIG_IGN));
}

/* install tells the kernel of an action, whose system calls are interrupted as the
 * application wants it. */
NV_EARLY_CODE static bool install(int signum, const struct sigaction *asked)
{
	const int flags = SA_RESTART | SA_NOCLDSTOP | SA_NOCLDWAIT;
	struct sigaction act = *asked;

	if (!plain(signum, asked)) {
		act.sa_sigaction = handle;
		act.sa_flags = SA_SIGINFO | SA_ONSTACK | (handled(asked) ? asked->sa_flags & flags : SA_RESTART);
	}
	if (actions[signum].kept)
		sigfillset(&act.sa_mask);
	if (REAL(sigaction)(signum, &act, NULL) != 0)
		return false;
	if (handled(asked) || actions[signum].kept)
		actions[signum].act = *asked;
	return true;
}

/* now returns the action as the application knows it. Somebody may have set another one
 * past our wrapper, as glibc does itself in sigignore, siginterrupt and system: one of a
 * signal that the runtime needs is taken again. */
static struct sigaction now(int signum)
{
	struct action *a = &actions[signum];
	struct sigaction act;

	if (REAL(sigaction)(signum, NULL, &act) != 0)
		return a->act;
	if (act.sa_sigaction == handle) {
		if (handled(&a->act))
			a->act.sa_flags = (a->act.sa_flags & ~SA_RESTART) | (act.sa_flags & SA_RESTART);
		return a->act;
	}
	if (!plain(signum, &act))
		install(signum, &act);
	return act;
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
static bool of_vfork(int signum, const struct sigaction *act, struct sigaction *old)
{
	struct sigaction was;

	if (REAL(sigaction)(signum, act, &was) == 0 && old != NULL)
		*old = was.sa_sigaction == handle ? actions[signum].act : was;
	return true;
}

bool nv_taken(int signum)
{
	return signum > 0 && signum < NSIG && actions[signum].known;
}

/* nv_taken_action is sigaction for a signal that is taken; false: it is not. */
bool nv_taken_action(int signum, const struct sigaction *act, struct sigaction *old)
{
	struct sigaction was;
	sigset_t before;

	if (!nv_taken(signum))
		return false;
	if (!nv_own_memory())
		return of_vfork(signum, act, old);
	unsigned even = begin(&before);

	was = now(signum);
	if (act != NULL)
		install(signum, act);
	end(even, &before);
	if (old != NULL)
		*old = was;
	return true;
}

/* take notes an action and has the kernel call our handler in its place. */
NV_EARLY_CODE static void take(int signum, bool keep)
{
	struct action *a = &actions[signum];
	struct sigaction was;

	if (a->known) {
		now(signum);
		return;
	}
	if (REAL(sigaction)(signum, NULL, &was) != 0)
		return; /* that of no signal, or of the C library */
	a->kept = keep;
	/* Where there is no handler nothing is changed: a pending SIGCHLD would be lost. */
	a->known = (!keep && !handled(&was)) || install(signum, &was);
}

/* nv_take_probes is called before main, when nobody else looks. */
NV_EARLY_CODE void nv_take_probes(void)
{
	for (size_t i = 0; i < PROBES; i++) {
		actions[needed[i]].kept = true; /* a page that is written to first is only one fault */
		take(needed[i], true);
	}
}

/* nv_take_signals is called before a runtime is loaded or another process serves
 * this one. */
void nv_take_signals(void)
{
	static _Atomic bool done;
	sigset_t before;

	if (atomic_load_explicit(&done, memory_order_relaxed) || atomic_exchange(&done, true))
		return;
	unsigned even = begin(&before);

	for (size_t i = 0; i < NEEDED; i++)
		take(needed[i], true);
	for (int signum = 1; signum < NSIG; signum++)
		if (signum != SIGKILL && signum != SIGSTOP)
			take(signum, false);
	end(even, &before);
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
	size_t i = place(signum);
	bool fault = i < FAULTS;

	if (signum != SIGURG && signum != SIGPIPE && !fault)
		return false;
	if (old != NULL) {
		memset(old, 0, sizeof *old);
		/* So Go passes on a fault in C that it has called. */
		if (fault)
			old->sa_sigaction = theirs;
	}
	if (act != NULL && fault)
		gos[i] = *act;
	return true;
}

/* ignore makes a program that is executed ignore what the application does: a
 * handler would be the default there. */
static void ignore(size_t first)
{
	int saved = errno;

	for (size_t i = first; i < NEEDED; i++)
		if (nv_taken(needed[i]) && actions[needed[i]].act.sa_handler == SIG_IGN)
			REAL(sigaction)(needed[i], &actions[needed[i]].act, NULL);
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

	for (size_t i = 0; i < NEEDED; i++)
		if (nv_taken(needed[i]) && actions[needed[i]].act.sa_handler == SIG_IGN)
			nv_taken_action(needed[i], NULL, NULL); /* takes it again */
	errno = saved;
}
