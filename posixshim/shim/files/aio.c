/* Asynchronous I/O: that of POSIX, which MPI libraries use, and that of libaio, which fio and DeepSpeed use.
 *
 * libc's threads and the kernel, which execute such requests, do not call the interposed functions. So a request for a file that
 * is ours is executed in the call that submits it. The result of a POSIX request is stored in its aiocb, where aio_error,
 * aio_return and aio_suspend look. The result of a libaio request is put into the kernel's completion queue. */
#include <fcntl.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* request executes a request of POSIX, stores the result in its aiocb, and sends the signal that the request asks for. A request
 * for a file that is not ours is left to real. */
static int request(struct aiocb *cb, bool writes, int (*real)(struct aiocb *cb))
{
	nv_handle h = nv_handle_of(cb->aio_fildes);
	const struct sigevent *event = &cb->aio_sigevent;
	void *buf = (void *)cb->aio_buf;
	int saved = errno;

	if (h == 0)
		return real(cb);
	if (event->sigev_notify == SIGEV_THREAD)
		return nv_unsupported("aio with SIGEV_THREAD");
	cb->__return_value = writes ? rt_pwrite(h, buf, cb->aio_nbytes, cb->aio_offset) : rt_pread(h, buf, cb->aio_nbytes, cb->aio_offset);
	cb->__error_code = cb->__return_value < 0 ? errno : 0;
	errno = saved;
	return event->sigev_notify == SIGEV_SIGNAL ? sigqueue(getpid(), event->sigev_signo, event->sigev_value) : 0;
}

int nv_aio_read(struct aiocb *cb)
{
	return request(cb, false, REAL(aio_read));
}

int nv_aio_write(struct aiocb *cb)
{
	return request(cb, true, REAL(aio_write));
}

/* transfer executes a request of libaio. */
static int64_t transfer(nv_handle h, const struct iocb *cb)
{
	void *buf = (void *)(uintptr_t)cb->aio_buf;

	if (cb->aio_rw_flags != 0)
		return nv_error(EOPNOTSUPP); /* as preadv2 */
	switch (cb->aio_lio_opcode) {
	case IOCB_CMD_PREAD:
		return rt_pread(h, buf, cb->aio_nbytes, cb->aio_offset);
	case IOCB_CMD_PWRITE:
		return rt_pwrite(h, buf, cb->aio_nbytes, cb->aio_offset);
	case IOCB_CMD_PREADV:
		return rt_readv(h, buf, (int)cb->aio_nbytes, cb->aio_offset);
	case IOCB_CMD_PWRITEV:
		return rt_writev(h, buf, (int)cb->aio_nbytes, cb->aio_offset);
	case IOCB_CMD_FSYNC:
	case IOCB_CMD_FDSYNC:
		return rt_fsync(h);
	}
	return nv_error(EINVAL);
}

/* queue_result puts the result of a request into the kernel's completion queue. For that it submits the request as a write of so
 * many bytes to /dev/null, which has that result. The kernel copies the request, so it can be restored at once. */
static long queue_result(aio_context_t context, struct iocb *cb, int64_t result)
{
	struct iocb own = *cb;
	long null = nv_kernel(SYS_openat, AT_FDCWD, "/dev/null", O_WRONLY | O_CLOEXEC), queued;

	if (null < 0)
		return null;
	cb->aio_fildes = (uint32_t)null;
	cb->aio_lio_opcode = IOCB_CMD_PWRITE;
	cb->aio_nbytes = (uint64_t)result;
	cb->aio_offset = 0;
	queued = nv_kernel(SYS_io_submit, context, 1, &cb);
	*cb = own;
	nv_kernel(SYS_close, null);
	return queued;
}

/* others returns how many requests at the start of the list are not ours. */
static long others(struct iocb **list, long n)
{
	long i = 0;

	while (i < n && nv_handle_of((int)list[i]->aio_fildes) == 0)
		i++;
	return i;
}

/* submit submits all requests before the first that is ours, or that one alone if it is the first of the list. It returns how
 * many it has submitted, or -errno. */
static long submit(aio_context_t context, long n, struct iocb **list)
{
	long before = others(list, n);
	int64_t result;

	if (before > 0 || n <= 0)
		return nv_kernel(SYS_io_submit, context, n <= 0 ? n : before, list);
	result = transfer(nv_handle_of((int)list[0]->aio_fildes), list[0]);
	return result < 0 ? -errno : queue_result(context, list[0], result);
}

long nv_io_submit(aio_context_t context, long n, struct iocb **list)
{
	int saved = errno;
	long done = 0, queued;

	do {
		queued = submit(context, n - done, list + done);
		done += queued > 0 ? queued : 0;
	} while (queued > 0 && done < n);
	errno = saved;
	return done > 0 ? done : queued;
}
