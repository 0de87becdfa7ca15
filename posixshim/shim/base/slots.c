/* The slots of the map from descriptors (descriptors.c), and those that the runtime's own descriptors have in it. */
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nv.h"

/* nv_close_quietly closes a descriptor of the kernel. Unlike the C library's
 * close, a thread is not cancelled in it. */
void nv_close_quietly(int fd)
{
	int saved = errno;

	REAL(syscall)(SYS_close, fd);
	errno = saved;
}

/* nv_put fills a slot of the map. */
void nv_put(int fd, nv_handle h)
{
	unsigned end = atomic_load_explicit(&nv_ours_end, memory_order_relaxed);

	while ((unsigned)fd >= end && !atomic_compare_exchange_weak(&nv_ours_end, &end, (unsigned)fd + 1))
		;
	atomic_store_explicit(&nv_fds[fd], h, memory_order_release);
}

/* nv_low_descriptors is how many descriptors are left to the application: most
 * of a usual limit of 1024, and half of a lower one. */
int nv_low_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= 1024)
		return 512;
	return (int)limit.rlim_cur / 2;
}

/* All low descriptors while the runtime is loaded, so that what Go opens itself, whose numbers cannot be changed, is out
 * of the application's way; and later while a library does so that the runtime uses. */
static int low[512];
static int occupied;

void nv_occupy(void)
{
	int end = nv_low_descriptors();
	int fd = REAL(open)("/", O_PATH | O_CLOEXEC);

	for (occupied = 0; fd >= 0 && fd < end && occupied < 512; fd = REAL(fcntl)(fd, F_DUPFD_CLOEXEC, 0))
		low[occupied++] = fd;
	if (fd >= 0)
		REAL(close)(fd);
}

void nv_vacate(void)
{
	while (occupied > 0)
		REAL(close)(low[--occupied]);
}

/* nv_own_in_place notes that fd is the runtime's. */
void nv_own_in_place(int fd)
{
	if ((unsigned)fd < NV_FDS)
		nv_put(fd, NV_RUNTIMES);
}

/* nv_own_descriptor is called by the runtime, from any thread: with own when it
 * has opened fd, which is moved out of the application's way, without before
 * it closes it; wire.h says what else. It returns the number to use. A thread that closes everything
 * between the opening and this call is not kept from it. */
int nv_own_descriptor(int fd, int own)
{
	if (own == NV_OWN_ASIDE)
		nv_occupy();
	if (own == NV_OWN_BESIDE)
		nv_vacate();
	if (own == NV_OWN_ASIDE || own == NV_OWN_BESIDE)
		return fd;
	if (own == NV_OWN_DROP) {
		nv_handle h = NV_RUNTIMES;

		if ((unsigned)fd < NV_FDS)
			atomic_compare_exchange_strong(&nv_fds[fd], &h, 0);
		return fd;
	}
	int low = own == NV_OWN_STAY ? 0 : nv_low_descriptors();
	int moved = fd >= low ? -1 : REAL(fcntl)(fd, F_DUPFD_CLOEXEC, low);

	if (moved >= 0) {
		REAL(close)(fd);
		fd = moved;
	}
	nv_own_in_place(fd);
	return fd;
}
