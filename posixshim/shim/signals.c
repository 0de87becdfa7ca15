/* The application's first handlers and threads; fork. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* The process whose memory this is. */
NV_EARLY static _Atomic pid_t memory_of;

/* expect_signals is called before there is a first handler, thread or child
 * of this process. Until then nobody can call anything where the linker, or the
 * memory of a stack, must not be asked for, and most programs end without. The
 * thread is the only one so far, or it has its stack. */
static void expect_signals(void)
{
	int saved = errno;

	nv_find_signal_calls();
	/* Without a stack, the first call into Go will fail and say so. */
	if (nv_mounted && !nv_has_signal_stack() && nv_own_memory())
		nv_signal_stack();
	errno = saved;
}

/* expect_handler is called before there is one. */
static void expect_handler(void)
{
	expect_signals();
	nv_expect_handlers();
	if (nv_loaded() && nv_own_memory())
		nv_serve_handlers();
}

static bool handled(sighandler_t handler)
{
	return handler != SIG_DFL && handler != SIG_IGN && handler != SIG_ERR && handler != SIG_HOLD;
}

/* What a new thread begins with. */
struct beginning {
	void *(*start)(void *);
	void *arg;
	sigset_t mask;
	bool runtimes; /* it is the Go runtime's */
	bool stack;    /* it gets a stack for handlers */
};

static void *begin(void *argument)
{
	struct beginning b = *(struct beginning *)argument;

	free(argument);
	if (b.runtimes)
		nv_settle_thread();
	/* Without a stack, the first call into Go will fail and say so. */
	if (b.stack)
		nv_signal_stack();
	if (b.runtimes) {
		sigset_t all;

		sigfillset(&all);
		nv_expect_go(&all);
		sigaddset(&b.mask, NV_REMASK);
	}
	pthread_sigmask(SIG_SETMASK, &b.mask, NULL);
	return b.start(b.arg);
}

static int create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	bool inside = nv_state == NV_INSIDE;
	bool runtimes = nv_mounted && nv_runtimes_thread(start);

	if (!inside)
		expect_signals();
	if (!nv_mounted || (inside && !runtimes))
		return REAL(pthread_create)(thread, attr, start, arg);
	struct beginning *b = malloc(sizeof *b);
	sigset_t all;

	if (b == NULL)
		return EAGAIN;
	b->start = start;
	b->arg = arg;
	b->runtimes = runtimes;
	b->stack = !inside;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &b->mask);
	sigset_t mask = b->mask;
	int result = REAL(pthread_create)(thread, attr, begin, b);

	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	if (result != 0)
		free(b);
	return result;
}

int nv_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	nv_creates_thread(false);
	int result = create(thread, attr, start, arg);

	nv_creates_thread(true);
	return result;
}

/* strange says whether a library that is being loaded with the runtime sets a
 * handler of its own. Go sets again those that it finds, to have them run on the
 * alternate stack; else they would run on, and over, the stack of a goroutine. */
static bool strange(int signum, const struct sigaction *act)
{
	struct sigaction now;

	return nv_loads_stranger((void *)act->sa_handler) &&
	       (REAL(sigaction)(signum, NULL, &now) != 0 || now.sa_handler != act->sa_handler);
}

/* of_runtime is sigaction where the runtime calls it, or a library that it uses. */
static int of_runtime(int signum, const struct sigaction *act, struct sigaction *old)
{
	if (act != NULL && strange(signum, act))
		act = NULL;
	else if (nv_loading() && nv_gos_action(signum, act, old))
		return 0;
	return REAL(sigaction)(signum, act, old);
}

int nv_sigaction(int signum, const struct sigaction *act, struct sigaction *old)
{
	if (nv_state == NV_INSIDE && !nv_in_handler())
		return of_runtime(signum, act, old);
	if (act != NULL && handled(act->sa_handler) && !nv_in_handler())
		expect_handler();
	return nv_taken_action(signum, act, old) ? 0 : REAL(sigaction)(signum, act, old);
}

/* set_action is what signal and its like do. */
static sighandler_t set_action(int signum, sighandler_t handler, int flags, bool masked)
{
	struct sigaction act = {.sa_handler = handler, .sa_flags = flags}, old;

	sigemptyset(&act.sa_mask);
	if (handler == SIG_ERR) {
		errno = EINVAL;
		return SIG_ERR;
	}
	if (masked)
		sigaddset(&act.sa_mask, signum);
	return nv_sigaction(signum, &act, &old) == 0 ? old.sa_handler : SIG_ERR;
}

/* Those that are to interrupt system calls also once signal sets another handler. */
static _Atomic uint64_t interrupting;

static uint64_t bit(int signum)
{
	return signum > 0 && signum < NSIG ? UINT64_C(1) << (signum - 1) : 0;
}

int nv_siginterrupt(int signum, int flag)
{
	int result = REAL(siginterrupt)(signum, flag);

	if (result == 0 && flag)
		atomic_fetch_or(&interrupting, bit(signum));
	else if (result == 0)
		atomic_fetch_and(&interrupting, ~bit(signum));
	return result;
}

sighandler_t nv_signal(int signum, sighandler_t handler)
{
	int flags = atomic_load(&interrupting) & bit(signum) ? 0 : SA_RESTART;

	if (nv_state != NV_INSIDE && handled(handler))
		expect_handler();
	return nv_taken(signum) ? set_action(signum, handler, flags, true) : REAL(signal)(signum, handler);
}

/* What signal is to programs that ask for POSIX and no more. */
sighandler_t nv_sysv_signal(int signum, sighandler_t handler)
{
	if (handled(handler))
		expect_handler();
	return nv_taken(signum) ? set_action(signum, handler, SA_RESETHAND | SA_NODEFER, false) : REAL(__sysv_signal)(signum, handler);
}

static sighandler_t set_taken(int signum, sighandler_t handler)
{
	sighandler_t before = set_action(signum, handler, 0, false);
	sigset_t one, blocked;

	sigemptyset(&one);
	sigaddset(&one, signum);
	pthread_sigmask(SIG_UNBLOCK, &one, &blocked);
	return sigismember(&blocked, signum) == 1 ? SIG_HOLD : before;
}

sighandler_t nv_sigset(int signum, sighandler_t handler)
{
	if (handled(handler))
		expect_handler();
	return nv_taken(signum) && handler != SIG_HOLD ? set_taken(signum, handler) : REAL(sigset)(signum, handler);
}

/* What the kernel empties in a child: nv_notice_fork. */
NV_LARGE struct nv_emptied nv_emptied;
bool nv_armed;

static void before_fork(void);
static void in_child(void);

/* What pthread_atfork is in glibc, and what it takes from there, so that
 * programs of musl, which has no such thing, can load this library. */
extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library) __attribute__((weak));
static char library; /* its address tells it from others */

/* nv_prepare_process is called before main. */
NV_EARLY_CODE void nv_prepare_process(void)
{
	atomic_store(&memory_of, (pid_t)nv_kernel(SYS_getpid));
	if (__register_atfork != NULL)
		__register_atfork(before_fork, NULL, in_child, &library);
	nv_prepare_first_thread();
}

bool nv_own_memory(void)
{
	return atomic_load(&memory_of) == getpid();
}

static pid_t forked(void)
{
	return fork();
}

/* nv_vfork returns the function to call for vfork. A vfork child shares our
 * tables: as long as nothing is in them it may, afterwards it is forked, so
 * that what it does to its descriptors does not show in ours, and that it can
 * open the working directory if that is in the mount. The wrapper jumps to the
 * function without leaving a frame for the child to run over. */
pid_t (*nv_vfork(void))(void)
{
	return nv_loaded() || nv_served() || nv_working_now() != 0 ? forked : REAL(vfork);
}

/* Nothing is locked from here on until the child is there: fork waits for locks
 * of libc, whose holder may be writing to a process that waits for our server. */
static void before_fork(void)
{
	expect_signals();
	nv_share_all();
}

static void forget_parent(void)
{
	bool loaded = nv_loaded();

	if (nv_armed)
		nv_emptied.mine = 1;
	atomic_store(&memory_of, getpid());
	nv_first_thread();
	nv_forget_actions();
	nv_release_streams();
	nv_lose_connections();
	if (!loaded && !nv_served())
		return;
	if (loaded)
		nv_forget_runtime();
	nv_forget_mappings();
	nv_lose_descriptors(nv_sharing());
	nv_lose_cwd();
}

static void in_child(void)
{
	int saved = errno;

	forget_parent();
	errno = saved;
}

/* nv_arm is called before there is anything that a child must not go on with. */
void nv_arm(void)
{
	if (nv_armed)
		return;
	nv_emptied.mine = 1;
	madvise(&nv_emptied, sizeof nv_emptied, MADV_WIPEONFORK); /* since Linux 4.14 */
	nv_armed = true;
}

/* nv_forked_unseen makes a child of one that was forked without the handlers of
 * pthread_atfork, by _Fork or clone. What is open has not been shared with it. */
void nv_forked_unseen(void)
{
	nv_forget_sharing();
	in_child();
}
