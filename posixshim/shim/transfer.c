/* Vectors with flags, space, and calls between two descriptors. */
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

int nv_sync_file_range(nv_handle h, off_t off, off_t n, unsigned flags)
{
	const unsigned known = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;

	if (off < 0 || n < 0 || off > INT64_MAX - n || (flags & ~known))
		return nv_error(EINVAL);
	return (int)rt_fsync(h);
}

/* nv_fadvise returns the error. */
int nv_fadvise(nv_handle h, off_t off, off_t n, int advice)
{
	if (n < 0 || advice < POSIX_FADV_NORMAL || advice > POSIX_FADV_NOREUSE)
		return EINVAL;
	int saved = errno, error = rt_advise(h, off, n, advice) < 0 ? errno : 0;

	errno = saved;
	return error;
}

ssize_t nv_readahead(nv_handle h, off_t off, size_t n)
{
	int64_t flags = rt_getfl(h);

	if (flags >= 0 && ((flags & O_PATH) || (flags & O_ACCMODE) == O_WRONLY))
		return nv_error(EBADF);
	if (flags < 0)
		return -1;
	return n == 0 ? 0 : rt_advise(h, off, n > INT64_MAX ? INT64_MAX : (int64_t)n, POSIX_FADV_WILLNEED);
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

int nv_posix_fallocate(nv_handle h, off_t off, off_t n)
{
	int saved = errno;
	int error = off < 0 || n <= 0 ? EINVAL : rt_fallocate(h, 0, off, n) == 0 ? 0 : errno;

	errno = saved;
	return error;
}

/* offset_there says whether an offset, if it is given, is somewhere. */
static bool offset_there(const off_t *off)
{
	return off == NULL || !nv_nowhere(off);
}

/* advance moves it on, when the data has been moved. */
static bool advance(off_t *off, ssize_t done)
{
	if (off == NULL)
		return true;
	if (nv_nowhere(off))
		return false;
	*off += done;
	return true;
}

/* nv_copy_file_range copies between two of ours; with one that is not ours it
 * fails like between two file systems, so that callers read and write. */
ssize_t nv_copy_file_range(int in, off64_t *inoff, int out, off64_t *outoff, size_t n, unsigned flags)
{
	nv_handle from = nv_ours(in), to = nv_ours(out);

	if (from == 0 && to == 0)
		return REAL(copy_file_range)(in, inoff, out, outoff, n, flags);
	if (from == 0 || to == 0)
		return nv_cross_device(from == 0 ? in : out, "");
	if (!offset_there(inoff) || !offset_there(outoff))
		return nv_error(EFAULT);
	if (flags != 0 || (inoff != NULL && *inoff < 0) || (outoff != NULL && *outoff < 0))
		return nv_error(EINVAL);
	ssize_t done = rt_copy(from, inoff == NULL ? -1 : *inoff, to, outoff == NULL ? -1 : *outoff,
			       n > SSIZE_MAX ? SSIZE_MAX : (off_t)n);

	if (done > 0 && (!advance(inoff, done) || !advance(outoff, done)))
		return nv_error(EFAULT);
	return done;
}

static ssize_t read_some(int fd, void *buf, size_t n, off_t off)
{
	nv_handle h = nv_ours(fd);

	return h != 0 ? rt_pread(h, buf, n, off) : REAL(pread)(fd, buf, n, off);
}

static ssize_t write_some(int fd, void *buf, size_t n)
{
	nv_handle h = nv_ours(fd);

	return h != 0 ? rt_write(h, buf, n) : REAL(write)(fd, buf, n);
}

static off_t move_to(int fd, off_t off, int whence)
{
	nv_handle h = nv_ours(fd);

	return h != 0 ? rt_seek(h, off, whence) : REAL(lseek)(fd, off, whence);
}

/* What sendfile moves at a time, on the caller's stack, and at most. */
#define SEND_CHUNK (32 << 10)
#define SEND_MOST (16 << 20)

ssize_t nv_sendfile(int out, int in, off_t *off, size_t n)
{
	char buf[SEND_CHUNK];
	size_t done = 0;

	if (!either(in, out))
		return REAL(sendfile)(out, in, off, n);
	if (!offset_there(off))
		return nv_error(EFAULT);
	off_t at = off != NULL ? *off : move_to(in, 0, SEEK_CUR);

	if (at < 0)
		return off != NULL || errno == ESPIPE ? nv_error(EINVAL) : -1; /* it cannot be mapped */
	if (n > SEND_MOST)
		n = SEND_MOST;
	while (done < n) {
		ssize_t got = read_some(in, buf, n - done < sizeof buf ? n - done : sizeof buf, at + (off_t)done);
		ssize_t put = got > 0 ? write_some(out, buf, (size_t)got) : got;

		if (put < 0 && done == 0)
			return -1;
		if (put <= 0)
			break;
		done += (size_t)put; /* why it is short the next write says */
	}
	if (!advance(off, (ssize_t)done))
		return nv_error(EFAULT);
	if (off == NULL && move_to(in, at + (off_t)done, SEEK_SET) < 0)
		return -1;
	return (ssize_t)done;
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
