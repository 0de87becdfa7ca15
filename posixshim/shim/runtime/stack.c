/* The alternate signal stack of a thread (sigaltstack).
 *
 * Go requires one, because handlers cannot run on the stack of a goroutine. To a thread without one, Go gives 32 KiB of its own
 * memory. A handler of the application that needs more would overwrite Go's memory unnoticed. So this file gives such a thread
 * a larger stack before the thread first calls Go. Below that is a guard page. */
#include <pthread.h>
#include <sys/mman.h>

#include "nv.h"

#define SIZE (1 << 20)
#define GUARD 4096

static pthread_key_t key;
static bool keyed;

/* release is the destructor of key. In the first round of destructors Go's may run after it, and that needs the stack. So the
 * first call only sets the value again, and the call of the second round frees the stack. */
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

/* nv_signal_stack gives the thread an alternate stack if it has none. Without memory for that the thread gets Go's. */
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
