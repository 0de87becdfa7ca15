/* The alternate stack of a thread.
 *
 * Go requires that signals come on one, since a goroutine's stack is none for them. To
 * threads without one it gives 32 KiB of its own memory, which a handler that needs more would
 * destroy unseen. So such a thread gets a larger one before it first calls Go, with a page
 * below it that ends a thread which needs even more. */
#include <pthread.h>
#include <sys/mman.h>

#include "nv.h"

#define SIZE (1 << 20)
#define GUARD 4096

static pthread_key_t key;
static bool keyed;

/* release runs when the thread ends. Go's destructor, which still expects the stack, may
 * come after this one in the first round: the second round frees it. */
static void release(void *stack)
{
	static __thread bool second __attribute__((tls_model("initial-exec")));
	const stack_t none = {.ss_flags = SS_DISABLE};
	stack_t now;

	if (!second) {
		second = true;
		pthread_setspecific(key, stack);
		return;
	}
	if (sigaltstack(NULL, &now) == 0 && now.ss_sp == stack)
		sigaltstack(&none, NULL);
	REAL(munmap)((char *)stack - GUARD, GUARD + SIZE);
}

static void make_key(void)
{
	keyed = pthread_key_create(&key, release) == 0;
}

/* nv_signal_stack gives the thread an alternate stack if it has none. Where there is no
 * memory for it, it gets Go's. */
void nv_signal_stack(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	stack_t now;

	pthread_once(&once, make_key);
	if (!keyed || sigaltstack(NULL, &now) != 0 || !(now.ss_flags & SS_DISABLE) || pthread_getspecific(key) != NULL)
		return;
	char *memory = REAL(mmap)(NULL, GUARD + SIZE, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);

	if (memory == MAP_FAILED)
		return;
	const stack_t stack = {.ss_sp = memory + GUARD, .ss_size = SIZE};

	if (mprotect(memory, GUARD, PROT_NONE) != 0 || pthread_setspecific(key, stack.ss_sp) != 0)
		REAL(munmap)(memory, GUARD + SIZE);
	else
		sigaltstack(&stack, NULL);
}
