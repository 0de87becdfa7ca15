/* Mappings, waiting, asynchronous I/O, watching, handles. */
#include "run.h"

#include <aio.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/select.h>

/* mmap f N PROT FLAGS OFFSET */
VERB(mmap)
{
	memory(BY(mmap, mmap64, mmap)(NULL, (size_t)N(1), (int)N(2), (int)N(3), F(0), N(4)), (size_t)N(1));
}

VERB(peek) { bytes(N(2), M(0) + N(1)); }
VERB(poke) { memcpy(M(0) + N(1), S(2), L(2)); say("done"); }
CALL(msync, msync(M(0), (size_t)N(1), (int)N(2)))
CALL(mprotect, mprotect(M(0), (size_t)N(1), (int)N(2)))
CALL(madvise, madvise(M(0), (size_t)N(1), MADV_DONTNEED))
VERB(mremap) { size_t n = (size_t)N(2); memory(mremap(M(0), (size_t)N(1), n, MREMAP_MAYMOVE), n); forget(0); }
VERB(munmap) { number(munmap(M(0), (size_t)N(1))); forget(0); }

/* ---- waiting ---- */

static void ready(int r, short events)
{
	number(r);
	if (r > 0)
		say("%s%s%s%s", events & POLLIN ? " IN" : "", events & POLLOUT ? " OUT" : "", events & POLLNVAL ? " NVAL" : "", events & POLLERR ? " ERR" : "");
}

VERB(poll)
{
	struct pollfd p = {.fd = F(0), .events = (short)N(1)};
	struct timespec none = {0};
	int r = BY(poll(&p, 1, 0), ppoll(&p, 1, &none, NULL), poll(&p, 1, -1));

	ready(r, p.revents);
}

VERB(select)
{
	fd_set in, out, except;
	struct timeval none = {0};
	struct timespec nothing = {0};
	int fd = F(0);

	FD_ZERO(&in);
	FD_SET(fd, &in);
	out = except = in;
	int r = BY(select(fd + 1, &in, &out, &except, &none), pselect(fd + 1, &in, &out, &except, &nothing, NULL),
		   select(fd + 1, &in, &out, &except, NULL));

	number(r);
	if (r >= 0)
		say(" %d %d %d", FD_ISSET(fd, &in) != 0, FD_ISSET(fd, &out) != 0, FD_ISSET(fd, &except) != 0);
}

VERB(epoll_ctl)
{
	struct epoll_event e = {.events = EPOLLIN};
	int ep = epoll_create1(0);

	number(epoll_ctl(ep, (int)N(1), F(0), &e));
	close(ep);
}

/* ---- asynchronous I/O ---- */

/* done waits for a request and prints what came of it. */
static void done(int r, struct aiocb *cb)
{
	const struct aiocb *list[] = {cb};

	if (r != 0) {
		number(r);
		return;
	}
	while (aio_error(cb) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	errno = aio_error(cb);
	number(aio_return(cb));
}

VERB(aio_read)
{
	struct aiocb cb = {.aio_fildes = F(0), .aio_buf = buffer, .aio_nbytes = (size_t)N(1), .aio_offset = N(2), .aio_sigevent.sigev_notify = SIGEV_NONE};

	memset(buffer, '-', 100);
	done(BY(aio_read(&cb), aio_read64((struct aiocb64 *)&cb), aio_read(&cb)), &cb);
	say(" ");
	bytes(N(1) < 100 ? N(1) : 0, buffer);
}

VERB(aio_write)
{
	struct aiocb cb = {.aio_fildes = F(0), .aio_buf = (char *)S(1), .aio_nbytes = L(1), .aio_offset = N(2), .aio_sigevent.sigev_notify = SIGEV_NONE};

	done(BY(aio_write(&cb), aio_write64((struct aiocb64 *)&cb), aio_write(&cb)), &cb);
}

/* ---- watching ---- */

VERB(inotify_add_watch)
{
	int fd = inotify_init1(IN_CLOEXEC);

	number(inotify_add_watch(fd, P(0), IN_CREATE));
	close(fd);
}

/* ---- file handles ---- */

VERB(name_to_handle_at)
{
	static union {
		struct file_handle handle;
		char buffer[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} h;
	int id;

	h.handle.handle_bytes = MAX_HANDLE_SZ;
	number(name_to_handle_at(F(0), R(1), &h.handle, &id, (int)N(2)));
}
