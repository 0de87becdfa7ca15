/* Asynchronous I/O: of POSIX, as MPI libraries use it, and of libaio, as fio and DeepSpeed do. libc
 * does the first on threads of its own, the kernel the second, and the calls of neither can be
 * intercepted. So on files of ours it is done at once: the request is complete when the call that makes it returns.
 * The outcome of the first goes where libc keeps it, which is where aio_error, aio_return and
 * aio_suspend look. The outcome of the second comes from the kernel's queue. */
#include <fcntl.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* complete records what a request has come to, and sends the signal that it asks for. */
static int complete(struct aiocb *cb, int64_t result, int saved)
{
	const struct sigevent *event = &cb->aio_sigevent;

	cb->__return_value = result;
	cb->__error_code = result < 0 ? errno : 0;
	errno = saved;
	return event->sigev_notify == SIGEV_SIGNAL ? sigqueue(getpid(), event->sigev_signo, event->sigev_value) : 0;
}

/* calls_function says of a request that it asks for a thread. None is started here. */
static bool calls_function(const struct aiocb *cb)
{
	return cb->aio_sigevent.sigev_notify == SIGEV_THREAD && nv_refuse("aio with SIGEV_THREAD") != 0;
}

int nv_aio_read(struct aiocb *cb)
{
	nv_handle h = nv_ours(cb->aio_fildes);
	int saved = errno;

	if (h == 0)
		return REAL(aio_read)(cb);
	if (calls_function(cb))
		return -1;
	return complete(cb, rt_pread(h, (void *)cb->aio_buf, cb->aio_nbytes, cb->aio_offset), saved);
}

int nv_aio_write(struct aiocb *cb)
{
	nv_handle h = nv_ours(cb->aio_fildes);
	int saved = errno;

	if (h == 0)
		return REAL(aio_write)(cb);
	if (calls_function(cb))
		return -1;
	return complete(cb, rt_pwrite(h, (void *)cb->aio_buf, cb->aio_nbytes, cb->aio_offset), saved);
}

/* transfer makes the call that a request of libaio stands for. */
static int64_t transfer(nv_handle h, const struct iocb *cb)
{
	void *buf = (void *)(uintptr_t)cb->aio_buf;

	if (cb->aio_rw_flags != 0)
		return nv_error(EOPNOTSUPP); /* as of preadv2 */
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

/* queue gives the kernel a request that is done: as one that writes as many bytes to /dev/null,
 * which ends with that number. The kernel has copied the request when it returns. */
static long queue(aio_context_t context, struct iocb *cb, int64_t result)
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

/* others is how many requests the list begins with that are not for files of ours. */
static long others(struct iocb **list, long n)
{
	long i = 0;

	while (i < n && nv_ours((int)list[i]->aio_fildes) == 0)
		i++;
	return i;
}

/* submit submits the first request of ours, or all in front of it, and returns what the kernel does. */
static long submit(aio_context_t context, long n, struct iocb **list)
{
	long before = others(list, n);
	int64_t result;

	if (before > 0 || n <= 0)
		return nv_kernel(SYS_io_submit, context, n <= 0 ? n : before, list);
	result = transfer(nv_ours((int)list[0]->aio_fildes), list[0]);
	return result < 0 ? -errno : queue(context, list[0], result);
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
