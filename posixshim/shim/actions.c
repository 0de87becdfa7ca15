/* The application's actions for signals, and what the kernel is told of them.
 *
 * Once a runtime is loaded, the kernel has one handler for all signals that the
 * application handles (deliver.c), and of some that the runtime needs: they are kept,
 * whatever the application asks for. Neither sees the other: sigaction shows what the
 * application has set.
 *
 * An action is the whole process's. Any thread may set it, in a handler, too, while
 * others read it in theirs: `version` is odd while one is written, by a thread that
 * no signal interrupts. */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

/* These are the runtime's whatever the application asks for, while one is loaded. */
static const int needed[] = {SIGSEGV, SIGBUS, SIGFPE, SIGPIPE, NV_REMASK};

#define FAULTS 3 /* what the runtime needs where it goes on while something is executed */
#define NEEDED (sizeof needed / sizeof *needed)

/* What our handler stands for where the kernel has it: what the application has asked
 * for last, or a handler before that, which the C library puts back (in system(3)). */
static struct action {
	struct sigaction act;
	bool known;
	bool kept; /* the kernel has our handler whatever the application asks for */
} actions[NSIG];

static _Atomic unsigned version;

bool nv_handled(const struct sigaction *act)
{
	return act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN;
}

/* ---- what the application has asked for ---- */

struct sigaction nv_action(int signum)
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

/* ---- what the kernel is told ---- */

/* plain says that the kernel has an action as it is. What is executed then ignores SIGPIPE
 * if the application does. */
static bool plain(int signum, const struct sigaction *act)
{
	return !nv_handled(act) && (!actions[signum].kept || (signum == SIGPIPE && act->sa_handler == SIG_IGN));
}

/* install tells the kernel of an action, whose system calls are interrupted as the
 * application wants it. */
static bool install(int signum, const struct sigaction *asked)
{
	const int flags = SA_RESTART | SA_NOCLDSTOP | SA_NOCLDWAIT;
	struct sigaction act = *asked;

	if (!plain(signum, asked)) {
		act.sa_sigaction = nv_signalled;
		act.sa_flags = SA_SIGINFO | SA_ONSTACK | (nv_handled(asked) ? asked->sa_flags & flags : SA_RESTART);
	}
	if (signum == NV_REMASK)
		sigfillset(&act.sa_mask); /* it has to come before others */
	if (REAL(sigaction)(signum, &act, NULL) != 0)
		return false;
	if (nv_handled(asked) || actions[signum].kept)
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
	if (act.sa_sigaction == nv_signalled) {
		if (nv_handled(&a->act))
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
		*old = was.sa_sigaction == nv_signalled ? actions[signum].act : was;
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
static void take(int signum, bool keep)
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
	a->known = (!keep && !nv_handled(&was)) || install(signum, &was);
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
