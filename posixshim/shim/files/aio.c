/* Asynchronous I/O, as MPI libraries use it. libc does it on threads of its own, whose calls
 * cannot be intercepted, so on files of ours it is done at once: the request is complete
 * when the call that makes it returns. Its outcome goes where libc keeps it,
 * which is where aio_error, aio_return and aio_suspend look. */
#include <unistd.h>

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
