/* The map from descriptors to open file descriptions of the runtime.
 *
 * A descriptor of ours is a placeholder in the kernel, an O_PATH descriptor of
 * the symbolic link /proc/self: its number is taken, it can be duplicated and
 * closed, and whoever has it without this library cannot lose data with it.
 * Reading and writing are EBADF, opening /dev/stdout or /proc/self/fd/N anew
 * is ELOOP (it would succeed with /dev/null), as a directory it is ENOTDIR.
 *
 * The runtime's own descriptors are in the map as well, behind the numbers
 * that applications use, so that those who close all they can think of, or
 * put a file on a number of their choice, do not meet them. */
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "nv.h"

_Atomic nv_handle nv_fds[NV_FDS];

/* One more than the highest descriptor that ever was ours. */
static _Atomic unsigned ours_end;

static void put(int fd, nv_handle h)
{
	unsigned end = atomic_load_explicit(&ours_end, memory_order_relaxed);

	while ((unsigned)fd >= end && !atomic_compare_exchange_weak(&ours_end, &end, (unsigned)fd + 1))
		;
	atomic_store_explicit(&nv_fds[fd], h, memory_order_release);
}

static void set(int fd, nv_handle h)
{
	put(fd, h);
	if (fd <= 2)
		nv_standard(fd);
}

/* unset empties the slot of a descriptor and returns what was in it. */
static nv_handle unset(int fd)
{
	nv_handle h = atomic_exchange(&nv_fds[fd], 0);

	if (fd <= 2 && h != 0)
		nv_standard(fd);
	return h;
}

/* drop gives a handle back. What was the parent's is not ours to give. */
static int drop(nv_handle h)
{
	return h == NV_LOST ? 0 : (int)rt_release(h);
}

static int keep(nv_handle h)
{
	return h == NV_LOST ? 0 : (int)rt_retain(h);
}

void nv_lose_descriptors(void)
{
	unsigned end = atomic_load(&ours_end);

	for (unsigned fd = 0; fd < end; fd++)
		if (nv_ours((int)fd) != 0) /* the child may close what its parent's runtime had */
			atomic_store(&nv_fds[fd], nv_ours((int)fd) == NV_RUNTIMES ? 0 : NV_LOST);
}

static void close_quietly(int fd)
{
	int saved = errno;

	REAL(close)(fd);
	errno = saved;
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

/* nv_own_in_place notes that fd is the runtime's. */
void nv_own_in_place(int fd)
{
	if ((unsigned)fd < NV_FDS)
		put(fd, NV_RUNTIMES);
}

/* nv_own_descriptor is called by the runtime, from any thread: with own when it
 * has opened fd, which is moved out of the application's way, without before
 * it closes it. It returns the number to use. A thread that closes everything
 * between the opening and this call is not kept from it. */
int nv_own_descriptor(int fd, int own)
{
	if (!own) {
		nv_handle h = NV_RUNTIMES;

		if ((unsigned)fd < NV_FDS)
			atomic_compare_exchange_strong(&nv_fds[fd], &h, 0);
		return fd;
	}
	int low = nv_low_descriptors();
	int moved = fd >= low ? -1 : REAL(fcntl)(fd, F_DUPFD_CLOEXEC, low);

	if (moved >= 0) {
		REAL(close)(fd);
		fd = moved;
	}
	nv_own_in_place(fd);
	return fd;
}

/* share makes fd, a duplicate that the kernel has just made, refer to h. */
static int share(int fd, nv_handle h)
{
	if (fd < 0)
		return -1;
	if (fd >= NV_FDS) {
		close_quietly(fd);
		return nv_error(EMFILE);
	}
	if (keep(h) != 0) {
		close_quietly(fd);
		return -1;
	}
	set(fd, h);
	return fd;
}

static int placeholder(int cloexec)
{
	int fd = REAL(open)("/proc/self", O_PATH | O_NOFOLLOW | cloexec);

	if (fd < 0 && errno == ENOENT) /* nothing can be opened anew without /proc */
		fd = REAL(open)("/dev/null", O_PATH | cloexec);
	return fd;
}

int nv_open(struct nv_place *at, int flags, mode_t mode)
{
	if ((flags & O_TMPFILE) == O_TMPFILE)
		return nv_error(EOPNOTSUPP);
	int saved = errno;
	int fd = placeholder(flags & O_CLOEXEC);

	if (fd >= NV_FDS) {
		close_quietly(fd);
		return nv_error(EMFILE);
	}
	if (fd < 0)
		return -1;
	nv_handle h = rt_open(at, flags & ~O_CLOEXEC, flags & O_CREAT ? nv_umasked(mode) : 0);

	if (h < 0) {
		close_quietly(fd);
		return -1;
	}
	set(fd, h);
	errno = saved;
	return fd;
}

int nv_close(int fd)
{
	if (nv_ours(fd) == NV_RUNTIMES)
		return nv_error(EBADF);
	nv_handle h = unset(fd);

	close_quietly(fd);
	return h == 0 ? nv_error(EBADF) : drop(h);
}

int nv_close_range(unsigned first, unsigned last, int flags)
{
	unsigned end = atomic_load(&ours_end);

	if ((flags & CLOSE_RANGE_CLOEXEC) || first > last)
		return REAL(close_range)(first, last, flags);
	for (unsigned fd = first; fd < end && fd <= last; fd++) {
		nv_handle h = nv_ours((int)fd);

		if (h != 0 && h != NV_RUNTIMES)
			nv_close((int)fd);
		if (h != NV_RUNTIMES)
			continue;
		if (fd > first && REAL(close_range)(first, fd - 1, flags) != 0)
			return -1;
		if (fd == last)
			return 0;
		first = fd + 1;
	}
	return REAL(close_range)(first, last, flags);
}

void nv_closefrom(int low)
{
	nv_close_range(low < 0 ? 0 : (unsigned)low, UINT_MAX, 0);
}

int nv_dup(int fd, nv_handle h)
{
	/* Closing a duplicate of the runtime's lock would drop the lock. */
	return h == NV_RUNTIMES ? nv_error(EBADF) : share(REAL(dup)(fd), h);
}

/* replace makes newfd, through the kernel's dup3 with flags or, if flags is
 * -1, its dup2, a duplicate of fd; either of them is ours. */
static int replace(int fd, int newfd, int flags)
{
	nv_handle h = nv_ours(fd);
	bool fits = (unsigned)newfd < NV_FDS;

	if ((!fits && h != 0) || nv_ours(newfd) == NV_RUNTIMES)
		return nv_error(EBADF);
	if (h != 0 && keep(h) != 0)
		return -1;
	nv_handle before = fits ? unset(newfd) : 0;
	int r = flags == -1 ? REAL(dup2)(fd, newfd) : REAL(dup3)(fd, newfd, flags);
	int saved = errno;

	if (r < 0) {
		if (before != 0)
			set(newfd, before);
		if (h != 0)
			drop(h);
		return nv_error(saved);
	}
	if (h != 0)
		set(newfd, h);
	if (before != 0)
		drop(before); /* like the kernel, dup2 does not tell of it */
	errno = saved;
	return r;
}

int nv_dup2(int fd, int newfd)
{
	if (fd == newfd || (nv_ours(fd) == 0 && nv_ours(newfd) == 0))
		return REAL(dup2)(fd, newfd);
	return replace(fd, newfd, -1);
}

int nv_dup3(int fd, int newfd, int flags)
{
	if (fd == newfd || (nv_ours(fd) == 0 && nv_ours(newfd) == 0))
		return REAL(dup3)(fd, newfd, flags);
	return replace(fd, newfd, flags);
}

/* A partition has one process that writes, so a lock on one of its files is
 * always granted, and never seen held. */
static int unlocked(struct flock *lock)
{
	lock->l_type = F_UNLCK;
	return 0;
}

int nv_fcntl(int fd, nv_handle h, int cmd, void *arg)
{
	if (h == NV_RUNTIMES)
		return nv_error(EBADF);
	switch (cmd) {
	case F_DUPFD:
	case F_DUPFD_CLOEXEC:
		return share(REAL(fcntl)(fd, cmd, arg), h);
	case F_GETFD:
	case F_SETFD:
		return REAL(fcntl)(fd, cmd, arg);
	case F_GETFL:
		return (int)rt_getfl(h);
	case F_SETFL:
		return (int)rt_setfl(h, (int)(intptr_t)arg);
	case F_GETLK:
	case F_OFD_GETLK:
		return unlocked(arg);
	case F_SETLK:
	case F_SETLKW:
	case F_OFD_SETLK:
	case F_OFD_SETLKW:
		return 0;
	}
	return nv_error(EINVAL);
}

int nv_flock(int operation)
{
	switch (operation & ~LOCK_NB) {
	case LOCK_SH:
	case LOCK_EX:
	case LOCK_UN:
		return 0;
	}
	return nv_error(EINVAL);
}

int nv_lockf(int command, off_t length)
{
	(void)length;
	if (command < F_ULOCK || command > F_TEST)
		return nv_error(EINVAL);
	return 0;
}

#define CLONE_FILE 0x40049409u       /* FICLONE */
#define CLONE_FILE_RANGE 0x4020940du /* FICLONERANGE */

int nv_ioctl(nv_handle h, unsigned long request)
{
	(void)h;
	return nv_error(request == CLONE_FILE || request == CLONE_FILE_RANGE ? EOPNOTSUPP : ENOTTY);
}
