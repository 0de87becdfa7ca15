/* The application's first handlers and threads; fork. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* expect_signals is called before there is a first handler, thread or child of this
 * process. Until then nobody can call anything where the linker must not be asked for, and
 * most programs end without. */
static void expect_signals(void)
{
	int saved = errno;

	nv_find_signal_calls();
	errno = saved;
}

static bool handled(sighandler_t handler)
{
	return handler != SIG_DFL && handler != SIG_IGN && handler != SIG_ERR && handler != SIG_HOLD;
}

/* What a new thread of the runtime's begins with. */
struct beginning {
	void *(*start)(void *);
	void *arg;
};

static void *begin(void *argument)
{
	struct beginning b = *(struct beginning *)argument;

	free(argument);
	nv_init_thread();
	return b.start(b.arg);
}

int nv_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	if (nv_state != NV_INSIDE)
		expect_signals();
	if (!nv_mounted || !nv_runtimes())
		return REAL(pthread_create)(thread, attr, start, arg);
	struct beginning *b = malloc(sizeof *b);

	if (b == NULL)
		return EAGAIN;
	*b = (struct beginning){start, arg};
	int result = REAL(pthread_create)(thread, attr, begin, b);

	if (result != 0)
		free(b);
	return result;
}

int nv_sigaction(int signum, const struct sigaction *act, struct sigaction *old)
{
	if (nv_state == NV_INSIDE)
		return nv_loading() ? nv_runtimes_action(signum, act, old) : REAL(sigaction)(signum, act, old);
	if (act != NULL && handled(act->sa_handler))
		expect_signals();
	return nv_fault_action(signum, act, old) ? 0 : REAL(sigaction)(signum, act, old);
}

/* set_handler is signal and its like; real is the function that it is for signals that are not of faults. */
static sighandler_t set_handler(int signum, sighandler_t handler, int flags, sighandler_t (*real)(int, sighandler_t))
{
	struct sigaction act = {.sa_handler = handler, .sa_flags = flags}, old;

	sigemptyset(&act.sa_mask);
	if (handled(handler))
		expect_signals();
	return handler != SIG_ERR && nv_fault_action(signum, &act, &old) ? old.sa_handler : real(signum, handler);
}

sighandler_t nv_signal(int signum, sighandler_t handler)
{
	return set_handler(signum, handler, SA_RESTART, REAL(signal));
}

/* What signal is to programs that ask for POSIX and no more. */
sighandler_t nv_sysv_signal(int signum, sighandler_t handler)
{
	return set_handler(signum, handler, SA_RESETHAND | SA_NODEFER, REAL(__sysv_signal));
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

/* fork's handlers are at work: a child has been given what is open. */
static __thread bool forking __attribute__((tls_model("initial-exec")));

/* Nothing is locked from here on until the child is there: fork waits for locks
 * of libc, whose holder may be writing to a process that waits for our server. */
static void before_fork(void)
{
	expect_signals();
	nv_share_all();
	forking = true;
}

static void in_parent(void)
{
	forking = false;
}

static void forget_parent(bool shared)
{
	bool loaded = nv_loaded();

	if (nv_armed)
		nv_emptied.mine = 1;
	nv_take_memory(getpid());
	nv_forget_actions();
	nv_drop_connections();
	if (!loaded && !nv_served())
		return;
	if (loaded)
		nv_forget_runtime();
	nv_forget_mappings();
	nv_drop_descriptors(nv_sharing(shared));
	nv_drop_cwd();
}

/* nv_begin_child is called in a child: by fork's handlers, or by its first interposed call if that comes before them, from
 * another library's handler, or without them, after _Fork or clone. With such a child nothing has been shared. */
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

/* What pthread_atfork is in glibc, and what it takes from there, so that
 * programs of musl, which has no such thing, can load this library. */
extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library) __attribute__((weak));
static char library; /* its address tells it from others */

/* nv_prepare_process is called before main. */
NV_EARLY_CODE void nv_prepare_process(void)
{
	nv_take_memory((pid_t)nv_kernel(SYS_getpid));
	if (__register_atfork != NULL)
		__register_atfork(before_fork, in_parent, in_child, &library);
}
