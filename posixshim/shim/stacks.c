/* The stacks that signals come on.
 *
 * Go requires handlers to run on an alternate stack, as a goroutine's is none for
 * them, and leaves a small one of its own on threads that have none: too small for
 * many handlers. So each thread gets a large one, where the kernel brings all signals
 * (deliver.c), unless it has one of the application's. The thread has to get it before
 * a handler runs on it: what a handler sets is undone when it returns, and the
 * next one would then run over the stack of a goroutine.
 *
 * The application is not to know: its handlers run where they would without us
 * (frame.c), and sigaltstack shows only what is its own. */
#include <pthread.h>
#include <sys/mman.h>

#include "nv.h"

#define SIGNAL_STACK (1 << 20)
#define GUARD 4096 /* below it: what is too large must not write over another thread's */

static pthread_once_t stack_once = PTHREAD_ONCE_INIT;
static pthread_key_t stack_key; /* of the stacks that are ours, since the first of them */
static _Atomic bool stack_keyed;

/* The thread's alternate stack. */
static __thread uintptr_t alternate __attribute__((tls_model("initial-exec")));
static __thread size_t alternate_size __attribute__((tls_model("initial-exec")));

/* nv_doubt_stack says that the thread may have none any more. Without one it must not call
 * Go: it gets one before it does so next (first_visit in runtime.c). */
void nv_doubt_stack(void)
{
	if (nv_state == NV_READY)
		nv_state = NV_OUT;
}

void nv_remember_stack(const stack_t *stack)
{
	bool none = stack->ss_flags & SS_DISABLE;

	alternate = none ? 0 : (uintptr_t)stack->ss_sp;
	alternate_size = none ? 0 : stack->ss_size;
	if (none)
		nv_doubt_stack();
}

bool nv_on_signal_stack(uintptr_t address)
{
	return address - alternate < alternate_size;
}

static void *ours(void)
{
	return atomic_load(&stack_keyed) ? pthread_getspecific(stack_key) : NULL;
}

/* nv_has_signal_stack says whether the thread is known to have an alternate stack. */
bool nv_has_signal_stack(void)
{
	return alternate != 0;
}

/* nv_has_own_signal_stack says whether that is one of the application's. */
bool nv_has_own_signal_stack(void)
{
	return alternate != 0 && alternate != (uintptr_t)ours();
}

/* An application that takes its alternate stack away gets ours back. */
int nv_sigaltstack(const stack_t *stack, stack_t *old)
{
	stack_t again = {.ss_sp = ours(), .ss_size = SIGNAL_STACK};

	if (stack != NULL && (stack->ss_flags & SS_DISABLE) && again.ss_sp != NULL)
		stack = &again;
	int result = REAL(sigaltstack)(stack, old);

	if (result == 0 && old != NULL && old->ss_sp != NULL && old->ss_sp == again.ss_sp)
		*old = (stack_t){.ss_flags = SS_DISABLE};
	if (result == 0 && stack != NULL)
		nv_remember_stack(stack);
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

	REAL(sigaltstack)(&off, NULL);
	nv_remember_stack(&off);
	munmap((char *)stack - GUARD, GUARD + SIGNAL_STACK);
}

static void make_stack_key(void)
{
	atomic_store(&stack_keyed, pthread_key_create(&stack_key, release_stack) == 0);
}

/* make_stack makes the thread's, which it has until it ends. */
static char *make_stack(void)
{
	char *guarded = REAL(mmap)(NULL, GUARD + SIGNAL_STACK, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);

	if (guarded == MAP_FAILED)
		return NULL;
	mprotect(guarded, GUARD, PROT_NONE);
	if (pthread_setspecific(stack_key, guarded + GUARD) != 0) {
		munmap(guarded, GUARD + SIGNAL_STACK);
		return NULL;
	}
	return guarded + GUARD;
}

/* nv_signal_stack gives the thread an alternate stack if it has none. */
bool nv_signal_stack(void)
{
	stack_t now;

	pthread_once(&stack_once, make_stack_key);
	if (!atomic_load(&stack_keyed)) {
		errno = EAGAIN;
		return false;
	}
	if (REAL(sigaltstack)(NULL, &now) != 0)
		return false;
	if (!(now.ss_flags & SS_DISABLE)) {
		nv_remember_stack(&now);
		return true;
	}
	char *memory = ours();

	if (memory == NULL && (memory = make_stack()) == NULL)
		return false;
	stack_t stack = {.ss_sp = memory, .ss_size = SIGNAL_STACK};

	if (REAL(sigaltstack)(&stack, NULL) != 0)
		return false; /* the thread keeps it */
	nv_remember_stack(&stack);
	return true;
}
