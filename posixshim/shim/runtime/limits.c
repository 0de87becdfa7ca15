/* Is there space for the runtime? Go ends the process when it is refused memory,
 * a thread, or a descriptor as it starts. So it is loaded only where what it
 * needs can be had, and a call that comes too early may succeed later. */
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "nv.h"

/* What it needs as it starts, with a margin. */
#define DESCRIPTORS 8       /* behind those that are left to the application */
#define THREADS 16          /* each with a stack of the usual size */
#define DATA (128ul << 20)  /* memory to write to, beside the stacks */
#define SPACE (2ul << 30)   /* addresses, which it reserves for later */

/* descriptors says whether so many are free. */
static bool descriptors(void)
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

/* mappable says whether n bytes of memory can be mapped. None is used. */
static bool mappable(size_t n, int prot)
{
	void *p = REAL(mmap)(NULL, n, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return false;
	REAL(munmap)(p, n);
	return true;
}

static bool memory(size_t *need)
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

/* nv_within_limits returns 0, or why the runtime cannot be loaded now; each reason is
 * said once. */
int nv_within_limits(void)
{
	static atomic_flag said_descriptors = ATOMIC_FLAG_INIT, said_memory = ATOMIC_FLAG_INIT;
	size_t need;

	if (!descriptors()) {
		if (!atomic_flag_test_and_set(&said_descriptors))
			nv_complain("files under %s cannot be used: it takes %d free descriptors above %d; close some, or raise the limit (ulimit -n)",
				    nv_mount, DESCRIPTORS, nv_low_descriptors());
		return EMFILE;
	}
	if (!memory(&need)) {
		if (!atomic_flag_test_and_set(&said_memory))
			nv_complain("files under %s cannot be used: the process cannot have %zu MiB more of memory; raise its limit (ulimit -v, ulimit -d)",
				    nv_mount, need >> 20);
		return ENOMEM;
	}
	return 0;
}
