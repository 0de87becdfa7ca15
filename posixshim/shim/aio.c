/* Asynchronous I/O. libc does it on threads of its own, whose calls cannot be
 * intercepted, so on files of ours it is done at once: the request is complete
 * when the call that makes it returns. Its outcome goes where libc keeps it,
 * which is where aio_error, aio_return and aio_suspend look. */
#include <pthread.h>
#include <unistd.h>

#include "nv.h"

static void *notify_thread(void *argument)
{
	struct sigevent *event = argument;

	event->sigev_notify_function(event->sigev_value);
	return NULL;
}

/* notify tells the application as it has asked for. */
static int notify(struct sigevent *event)
{
	pthread_t thread;

	switch (event->sigev_notify) {
	case SIGEV_NONE:
		return 0;
	case SIGEV_SIGNAL:
		return sigqueue(getpid(), event->sigev_signo, event->sigev_value);
	case SIGEV_THREAD:
		errno = nv_pthread_create(&thread, event->sigev_notify_attributes, notify_thread, event);
		if (errno != 0)
			return -1;
		pthread_detach(thread);
		return 0;
	}
	return nv_error(EINVAL);
}

/* complete records what a request has come to. */
static int complete(struct aiocb *cb, ssize_t result, int saved)
{
	cb->__return_value = result;
	cb->__error_code = result < 0 ? errno : 0;
	errno = saved;
	return notify(&cb->aio_sigevent);
}

int nv_aio_read(struct aiocb *cb)
{
	nv_handle h = nv_ours(cb->aio_fildes);
	int saved = errno;

	if (h == 0)
		return REAL(aio_read)(cb);
	return complete(cb, rt_pread(h, (void *)cb->aio_buf, cb->aio_nbytes, cb->aio_offset), saved);
}

int nv_aio_write(struct aiocb *cb)
{
	nv_handle h = nv_ours(cb->aio_fildes);
	int saved = errno;

	if (h == 0)
		return REAL(aio_write)(cb);
	nv_expect_beyond(true); /* libc's thread, which would do it, takes no signals */
	ssize_t n = rt_pwrite(h, (void *)cb->aio_buf, cb->aio_nbytes, cb->aio_offset);

	nv_expect_beyond(false);
	return complete(cb, n, saved);
}

int nv_aio_fsync(int operation, struct aiocb *cb)
{
	nv_handle h = nv_ours(cb->aio_fildes);
	int saved = errno;

	if (h == 0)
		return REAL(aio_fsync)(operation, cb);
	if (operation != O_SYNC && operation != O_DSYNC)
		return nv_error(EINVAL);
	return complete(cb, rt_fsync(h), saved);
}

int nv_aio_cancel(int fd, struct aiocb *cb)
{
	(void)fd;
	(void)cb;
	return AIO_ALLDONE;
}

/* start makes one request of a list. */
static int start(struct aiocb *cb)
{
	switch (cb->aio_lio_opcode) {
	case LIO_READ:
		return nv_aio_read(cb);
	case LIO_WRITE:
		return nv_aio_write(cb);
	}
	return 0;
}

static bool is_ours(const struct aiocb *cb)
{
	return cb != NULL && cb->aio_lio_opcode != LIO_NOP && nv_ours(cb->aio_fildes) != 0;
}

/* await waits for one request and says whether it succeeded. */
static bool await(const struct aiocb *cb)
{
	const struct aiocb *list[] = {cb};

	while (aio_error(cb) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	return aio_error(cb) == 0;
}

int nv_lio_listio(int mode, struct aiocb *const list[], int n, struct sigevent *event)
{
	bool ours = false, good = true;

	for (int i = 0; i < n; i++)
		ours = ours || is_ours(list[i]);
	if (!ours)
		return REAL(lio_listio)(mode, list, n, event);
	if (mode != LIO_WAIT && mode != LIO_NOWAIT)
		return nv_error(EINVAL);
	for (int i = 0; i < n; i++)
		if (list[i] != NULL && start(list[i]) != 0)
			good = false;
	for (int i = 0; i < n; i++)
		if (list[i] != NULL && list[i]->aio_lio_opcode != LIO_NOP && (mode == LIO_WAIT || is_ours(list[i])))
			good = await(list[i]) && good;
	if (mode == LIO_NOWAIT && event != NULL && notify(event) != 0)
		return -1;
	return good ? 0 : nv_error(EIO);
}
