/* Signal handlers, new threads, and fork. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* resolve_before_signals is called before the process has its first handler, thread or child. Only these can make a call where
 * the dynamic linker must not be entered. Most programs have none, and are spared the look-ups. */
static void resolve_before_signals(void)
{
	int saved = errno;

	nv_resolve_signal_calls();
	errno = saved;
}

static bool handled(sighandler_t handler)
{
	return handler != SIG_DFL && handler != SIG_IGN && handler != SIG_ERR && handler != SIG_HOLD;
}

/* The start function of a new thread of the runtime, and its argument. */
struct thread_start {
	void *(*start)(void *);
	void *arg;
};

static void *start_runtime_thread(void *argument)
{
	struct thread_start b = *(struct thread_start *)argument;

	free(argument);
	nv_init_thread();
	return b.start(b.arg);
}

int nv_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	if (nv_state != NV_INSIDE)
		resolve_before_signals();
	if (!nv_mounted || !nv_in_runtime())
		return REAL(pthread_create)(thread, attr, start, arg);
	struct thread_start *b = malloc(sizeof *b);

	if (b == NULL)
		return EAGAIN;
	*b = (struct thread_start){start, arg};
	int result = REAL(pthread_create)(thread, attr, start_runtime_thread, b);

	if (result != 0)
		free(b);
	return result;
}

int nv_sigaction(int signum, const struct sigaction *act, struct sigaction *old)
{
	if (nv_state == NV_INSIDE)
		return nv_loading() ? nv_runtime_sigaction(signum, act, old) : REAL(sigaction)(signum, act, old);
	if (act != NULL && handled(act->sa_handler))
		resolve_before_signals();
	return nv_fault_action(signum, act, old) ? 0 : REAL(sigaction)(signum, act, old);
}

/* set_handler is signal or __sysv_signal. flags are those of sigaction with the same effect. For signals other than fault
 * signals it calls real. */
static sighandler_t set_handler(int signum, sighandler_t handler, int flags, sighandler_t (*real)(int, sighandler_t))
{
	struct sigaction act = {.sa_handler = handler, .sa_flags = flags}, old;

	sigemptyset(&act.sa_mask);
	if (handled(handler))
		resolve_before_signals();
	return handler != SIG_ERR && nv_fault_action(signum, &act, &old) ? old.sa_handler : real(signum, handler);
}

sighandler_t nv_signal(int signum, sighandler_t handler)
{
	return set_handler(signum, handler, SA_RESTART, REAL(signal));
}

/* nv_sysv_signal is the signal of programs that are compiled for POSIX alone (_POSIX_C_SOURCE). */
sighandler_t nv_sysv_signal(int signum, sighandler_t handler)
{
	return set_handler(signum, handler, SA_RESETHAND | SA_NODEFER, REAL(__sysv_signal));
}

static pid_t forked(void)
{
	return fork();
}

/* nv_vfork returns the function that the wrapper of vfork jumps to. A child of vfork shares the tables of this library. If they
 * are empty that does no harm. Otherwise the child is made by fork: its descriptors then do not change those of the parent, and
 * it can open a working directory that is ours. The wrapper has no frame, which the child would overwrite. */
pid_t (*nv_vfork(void))(void)
{
	return nv_loaded() || nv_served() || nv_cwd_peek() != 0 ? forked : REAL(vfork);
}

/* This thread is in fork, and its open files have been shared with the child. */
static __thread bool forking __attribute__((tls_model("initial-exec")));

/* before_fork holds no lock when it returns. fork then waits for locks of libc. The thread that has those may be writing to a
 * process that waits for an answer of this one's server threads. */
static void before_fork(void)
{
	resolve_before_signals();
	nv_share_all();
	forking = true;
}

static void in_parent(void)
{
	forking = false;
}

/* forget_parent drops in a child what belongs to its parent. shared says that the parent has shared its open files. */
static void forget_parent(bool shared)
{
	bool loaded = nv_loaded();

	if (nv_detects_fork)
		nv_fork_mark.kept = 1;
	nv_claim_memory(getpid());
	nv_forget_actions();
	nv_drop_connections();
	if (!loaded && !nv_served())
		return;
	if (loaded)
		nv_forget_runtime();
	nv_forget_mappings();
	nv_drop_descriptors(nv_parent_server(shared));
	nv_drop_cwd();
}

/* nv_begin_child is called in a child: by the handler of fork, or by the child's first interposed call. That call is the first
 * if a fork handler of another library makes it, or if _Fork or clone has made the child. After _Fork or clone the parent has not
 * shared its open files. */
void nv_begin_child(void)
{
	int saved = errno;

	forget_parent(forking);
	forking = false;
	errno = saved;
}

static void in_child(void)
{
	if (forking)
		nv_begin_child();
}

/* glibc's function behind pthread_atfork. It is weak, so that programs of musl, which lacks it, can load this library. */
extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library) __attribute__((weak));
static char library; /* its address identifies this library */

/* nv_prepare_process is called before main. */
NV_EARLY_CODE void nv_prepare_process(void)
{
	nv_claim_memory((pid_t)nv_kernel(SYS_getpid));
	if (__register_atfork != NULL)
		__register_atfork(before_fork, in_parent, in_child, &library);
}
