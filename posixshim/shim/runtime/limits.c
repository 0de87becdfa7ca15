/* Are there resources for the runtime? Go ends the process if it gets no memory, thread or descriptor when it starts. So the
 * runtime is loaded only where its resources are available. A call that fails for lack of them may succeed later. */
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "nv.h"

/* What the runtime needs when it starts, with a margin. */
#define DESCRIPTORS 8       /* from nv_low_descriptors on */
#define THREADS 16          /* each with a stack of default size */
#define DATA (128ul << 20)  /* writable memory, without the stacks */
#define SPACE (2ul << 30)   /* address space, which Go reserves */

/* have_descriptors says whether DESCRIPTORS descriptors are free. */
static bool have_descriptors(void)
{
	int fds[DESCRIPTORS], n = 0;
	int from = REAL(open)("/", O_PATH | O_CLOEXEC);

	while (from >= 0 && n < DESCRIPTORS && (fds[n] = REAL(fcntl)(from, F_DUPFD_CLOEXEC, nv_low_descriptors())) >= 0)
		n++;
	bool enough = n == DESCRIPTORS;

	while (n > 0)
		REAL(close)(fds[--n]);
	if (from >= 0)
		REAL(close)(from);
	return enough;
}

/* mappable says whether n bytes of memory can be mapped. It unmaps them again. */
static bool mappable(size_t n, int prot)
{
	void *p = REAL(mmap)(NULL, n, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return false;
	REAL(munmap)(p, n);
	return true;
}

/* have_memory says whether the runtime can have its memory, and stores in need how many bytes it asked for last. */
static bool have_memory(size_t *need)
{
	pthread_attr_t attr;
	size_t stack = 8 << 20;

	if (pthread_attr_init(&attr) == 0) {
		pthread_attr_getstacksize(&attr, &stack);
		pthread_attr_destroy(&attr);
	}
	*need = SPACE;
	if (!mappable(SPACE, PROT_NONE))
		return false;
	*need = DATA + THREADS * stack;
	return mappable(*need, PROT_READ | PROT_WRITE);
}

/* nv_within_limits returns 0, or the errno with which the runtime cannot be loaded now. It prints each reason once. */
int nv_within_limits(void)
{
	static atomic_flag said_descriptors = ATOMIC_FLAG_INIT, said_memory = ATOMIC_FLAG_INIT;
	size_t need;

	if (!have_descriptors()) {
		if (!atomic_flag_test_and_set(&said_descriptors))
			nv_complain("files under %s cannot be used: it takes %d free descriptors above %d; close some, or raise the limit (ulimit -n)",
				    nv_mount, DESCRIPTORS, nv_low_descriptors());
		return EMFILE;
	}
	if (!have_memory(&need)) {
		if (!atomic_flag_test_and_set(&said_memory))
			nv_complain("files under %s cannot be used: the process cannot have %zu MiB more of memory; raise its limit (ulimit -v, ulimit -d)",
				    nv_mount, need >> 20);
		return ENOMEM;
	}
	return 0;
}
