/* The map of descriptors (nv_fds), and the descriptors that the runtime uses itself. The runtime's descriptors are in the
 * map, above the numbers that applications usually have, so that the application neither closes nor replaces them. */
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nv.h"

/* nv_close_quietly closes a descriptor and keeps errno. Unlike close of the C library it is no cancellation point. */
void nv_close_quietly(int fd)
{
	int saved = errno;

	REAL(syscall)(SYS_close, fd);
	errno = saved;
}

/* nv_set_handle sets a slot of the map. */
void nv_set_handle(int fd, nv_handle h)
{
	unsigned end = atomic_load_explicit(&nv_fds_end, memory_order_relaxed);

	while ((unsigned)fd >= end && !atomic_compare_exchange_weak(&nv_fds_end, &end, (unsigned)fd + 1))
		;
	atomic_store_explicit(&nv_fds[fd], h, memory_order_release);
}

/* nv_low_descriptors returns the lowest number for descriptors of the runtime: half of RLIMIT_NOFILE, but at most 512. */
int nv_low_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= 1024)
		return 512;
	return (int)limit.rlim_cur / 2;
}

/* Placeholders on all low numbers. They exist while Go, or a library that the runtime uses, opens descriptors whose numbers
 * cannot be changed, so that these get high numbers. Only the thread between NV_OWN_RESERVE and NV_OWN_UNRESERVE, or the one
 * that loads the runtime, uses these variables. */
static int low[512];
static int low_count;

void nv_reserve_low(void)
{
	int end = nv_low_descriptors();
	int fd = REAL(open)("/", O_PATH | O_CLOEXEC);

	for (low_count = 0; fd >= 0 && fd < end && low_count < 512; fd = REAL(fcntl)(fd, F_DUPFD_CLOEXEC, 0))
		low[low_count++] = fd;
	if (fd >= 0)
		REAL(close)(fd);
}

void nv_free_low(void)
{
	while (low_count > 0)
		REAL(close)(low[--low_count]);
}

/* nv_mark_runtime_owned enters fd in the map as a descriptor of the runtime. */
void nv_mark_runtime_owned(int fd)
{
	if ((unsigned)fd < NV_FDS)
		nv_set_handle(fd, NV_RUNTIME_OWNED);
}

/* nv_own_descriptor is called by the runtime, from any thread, when it opens and closes descriptors (wire.h). A descriptor
 * that it has opened is moved to a high number. The result is the number to use. The application can still close fd between
 * the runtime's open and this call. */
int nv_own_descriptor(int fd, int own)
{
	if (own == NV_OWN_RESERVE)
		nv_reserve_low();
	if (own == NV_OWN_UNRESERVE)
		nv_free_low();
	if (own == NV_OWN_RESERVE || own == NV_OWN_UNRESERVE)
		return fd;
	if (own == NV_OWN_CLOSING) {
		nv_handle h = NV_RUNTIME_OWNED;

		if ((unsigned)fd < NV_FDS)
			atomic_compare_exchange_strong(&nv_fds[fd], &h, 0);
		return fd;
	}
	int low = own == NV_OWN_KEEP_NUMBER ? 0 : nv_low_descriptors();
	int moved = fd >= low ? -1 : REAL(fcntl)(fd, F_DUPFD_CLOEXEC, low);

	if (moved >= 0) {
		REAL(close)(fd);
		fd = moved;
	}
	nv_mark_runtime_owned(fd);
	return fd;
}
