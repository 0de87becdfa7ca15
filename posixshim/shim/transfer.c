/* Vectors with flags, mmap, and calls between two descriptors. */
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "nv.h"

/* What is acknowledged survives a crash of the process anyway; RWF_DSYNC and
 * RWF_SYNC add an fsync, RWF_HIPRI and RWF_NOWAIT are hints to us. */
#define KNOWN_FLAGS (RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND)

ssize_t nv_preadv2(nv_handle h, const struct iovec *iov, int count, off_t off, int flags)
{
	if (off < -1)
		return nv_error(EINVAL);
	if (flags & ~KNOWN_FLAGS)
		return nv_error(EOPNOTSUPP);
	return rt_readv(h, iov, count, off);
}

ssize_t nv_pwritev2(nv_handle h, const struct iovec *iov, int count, off_t off, int flags)
{
	if (off < -1)
		return nv_error(EINVAL);
	if (flags & ~KNOWN_FLAGS)
		return nv_error(EOPNOTSUPP);
	ssize_t n = rt_writev(h, iov, count, off, flags & RWF_APPEND);

	if (n > 0 && (flags & (RWF_DSYNC | RWF_SYNC)) && rt_fsync(h) != 0)
		return -1;
	return n;
}

void nv_sync(void)
{
	int saved = errno;

	REAL(sync)();
	if (nv_loaded())
		rt_syncfs();
	errno = saved;
}

static bool either(int a, int b)
{
	return nv_ours(a) != 0 || nv_ours(b) != 0;
}

ssize_t nv_copy_file_range(int in, off64_t *inoff, int out, off64_t *outoff, size_t n, unsigned flags)
{
	if (either(in, out))
		return nv_error(EXDEV);
	return REAL(copy_file_range)(in, inoff, out, outoff, n, flags);
}

ssize_t nv_sendfile(int out, int in, off_t *off, size_t n)
{
	if (either(in, out))
		return nv_error(EINVAL);
	return REAL(sendfile)(out, in, off, n);
}

ssize_t nv_splice(int in, off64_t *inoff, int out, off64_t *outoff, size_t n, unsigned flags)
{
	if (either(in, out))
		return nv_error(EINVAL);
	return REAL(splice)(in, inoff, out, outoff, n, flags);
}

ssize_t nv_tee(int in, int out, size_t n, unsigned flags)
{
	if (either(in, out))
		return nv_error(EINVAL);
	return REAL(tee)(in, out, n, flags);
}

int nv_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	if (nv_ours(fd) != 0)
		return nv_error(EPERM); /* as for any regular file */
	return REAL(epoll_ctl)(epfd, op, fd, event);
}

/* fill reads the part of the file that a new mapping shows. Bytes behind the
 * end of the file are zeros. */
static bool fill(nv_handle h, char *memory, size_t n, off_t off)
{
	while (n > 0) {
		ssize_t got = rt_pread(h, memory, n, off);

		if (got < 0)
			return false;
		if (got == 0)
			break;
		memory += got;
		off += got;
		n -= (size_t)got;
	}
	return true;
}

/* nv_mmap makes private mappings, and shared ones that are only read, from
 * anonymous memory filled at once. Such a mapping does not see later writes
 * to the file. Shared ones that are written to are refused. */
void *nv_mmap(nv_handle h, void *addr, size_t n, int prot, int flags, off_t off)
{
	static _Atomic bool told;

	if ((flags & MAP_TYPE) != MAP_PRIVATE && (prot & PROT_WRITE)) {
		if (!atomic_exchange(&told, true))
			nv_complain("mmap of a file under %s, shared and writable, is not supported; use write, or map it privately",
				    nv_mount);
		errno = ENODEV;
		return MAP_FAILED;
	}
	if (off < 0 || off % sysconf(_SC_PAGESIZE) != 0) {
		errno = EINVAL;
		return MAP_FAILED;
	}
	int saved = errno;
	int placed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_NORESERVE | MAP_32BIT);
	char *memory = REAL(mmap)(addr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | placed, -1, 0);

	if (memory == MAP_FAILED)
		return MAP_FAILED;
	if (!fill(h, memory, n, off) || mprotect(memory, n, prot) != 0) {
		saved = errno;
		munmap(memory, n);
		errno = saved;
		return MAP_FAILED;
	}
	errno = saved;
	return memory;
}
