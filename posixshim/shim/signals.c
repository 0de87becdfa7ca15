/* What Go needs of signal handlers and of their stacks; fork.
 *
 * Go requires handlers to run on an alternate stack, and leaves a small one of
 * its own on threads that have none: too small for many handlers. So each
 * thread gets a large one before its first call into Go, and handlers that the
 * application installs get SA_ONSTACK (Go adds it to those it finds). */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nv.h"

#define SIGNAL_STACK (256 << 10)

static pthread_key_t stack_key;

/* The thread's alternate stack. */
static __thread uintptr_t alternate __attribute__((tls_model("initial-exec")));
static __thread size_t alternate_size __attribute__((tls_model("initial-exec")));

static void remember_stack(const stack_t *stack)
{
	bool none = stack->ss_flags & SS_DISABLE;

	alternate = none ? 0 : (uintptr_t)stack->ss_sp;
	alternate_size = none ? 0 : stack->ss_size;
}

/* nv_in_handler says that a signal handler runs on the alternate stack. It
 * must not call into Go: Go's stack would lie in the alternate one, but its
 * goroutines' do not, so the kernel would put the next signal's frame over
 * both; and Go allocates memory, which a handler may have interrupted. */
bool nv_in_handler(void)
{
	return (uintptr_t)__builtin_frame_address(0) - alternate < alternate_size;
}

int nv_sigaltstack(const stack_t *stack, stack_t *old)
{
	int result = REAL(sigaltstack)(stack, old);

	if (result == 0 && stack != NULL)
		remember_stack(stack);
	return result;
}

/* release_stack runs when the thread ends. Go's own destructor, which still
 * expects the stack, may come after this one in the first round: the second
 * round frees it. */
static void release_stack(void *stack)
{
	static __thread bool second __attribute__((tls_model("initial-exec")));

	if (!second) {
		second = true;
		pthread_setspecific(stack_key, stack);
		return;
	}
	stack_t off = {.ss_flags = SS_DISABLE};

	nv_sigaltstack(&off, NULL);
	munmap(stack, SIGNAL_STACK);
}

static void make_key(void)
{
	pthread_key_create(&stack_key, release_stack);
}

/* nv_signal_stack gives the thread an alternate stack if it has none. */
bool nv_signal_stack(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	stack_t now;

	pthread_once(&once, make_key);
	if (REAL(sigaltstack)(NULL, &now) != 0)
		return false;
	if (!(now.ss_flags & SS_DISABLE)) {
		remember_stack(&now);
		return true;
	}
	void *memory = REAL(mmap)(NULL, SIGNAL_STACK, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);

	if (memory == MAP_FAILED)
		return false;
	stack_t stack = {.ss_sp = memory, .ss_size = SIGNAL_STACK};

	if (nv_sigaltstack(&stack, NULL) != 0 || pthread_setspecific(stack_key, memory) != 0) {
		munmap(memory, SIGNAL_STACK);
		return false;
	}
	return true;
}

int nv_sigaction(int signum, const struct sigaction *act, struct sigaction *old)
{
	if (act == NULL || !nv_loaded() || nv_state == NV_INSIDE)
		return REAL(sigaction)(signum, act, old);
	struct sigaction with = *act;

	if (with.sa_handler != SIG_DFL && with.sa_handler != SIG_IGN)
		with.sa_flags |= SA_ONSTACK;
	return REAL(sigaction)(signum, &with, old);
}

sighandler_t nv_signal(int signum, sighandler_t handler)
{
	if (!nv_loaded() || nv_state == NV_INSIDE)
		return REAL(signal)(signum, handler);
	struct sigaction act = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;

	sigemptyset(&act.sa_mask);
	sigaddset(&act.sa_mask, signum);
	if (nv_sigaction(signum, &act, &old) != 0)
		return SIG_ERR;
	return old.sa_handler;
}

/* The process whose memory this is. */
static _Atomic pid_t memory_of;

static void in_child(void);

__attribute__((constructor)) static void remember_process(void)
{
	atomic_store(&memory_of, getpid());
	pthread_atfork(NULL, NULL, in_child);
}

bool nv_own_memory(void)
{
	return atomic_load(&memory_of) == getpid();
}

/* nv_vfork returns the function to call for vfork. A vfork child shares our
 * tables: as long as nothing is in them it may, afterwards it is forked, so
 * that what it does to its descriptors does not show in ours. The wrapper
 * jumps to the function without leaving a frame for the child to run over. */
pid_t (*nv_vfork(void))(void)
{
	return nv_loaded() ? fork : REAL(vfork);
}

static void in_child(void)
{
	atomic_store(&memory_of, getpid());
	nv_release_streams();
	if (!nv_loaded())
		return;
	nv_forget_runtime();
	nv_lose_descriptors();
	nv_find_cwd();
}
