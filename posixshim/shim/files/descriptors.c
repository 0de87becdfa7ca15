/* Opening, closing and duplicating descriptors that are ours.
 *
 * In the kernel a descriptor of ours is a placeholder: an O_PATH descriptor of the symbolic link /proc/self. It takes a number,
 * and can be duplicated and closed. A program without this library cannot lose data by writing to it: read and write fail with
 * EBADF, opening /dev/stdout or /proc/self/fd/N fails with ELOOP (on /dev/null it would succeed), opening it as a directory fails
 * with ENOTDIR.
 *
 * The placeholder of a file that other processes have open too is a socket, whose name tells them which file it is
 * (inherit.c).
 *
 * Locks: a thread that changes a descriptor of ours has the lock changing for reading. A thread that replaces placeholders has it
 * for writing, because dup3 onto a number that another thread is closing would open it again. */
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* The descriptor that placeholders are duplicated from, which takes a quarter of the time of opening them; -1: none yet. The map
 * has it as a descriptor of the runtime. */
static _Atomic int pattern = -1;

/* nv_adopt makes h the handle of a descriptor. */
void nv_adopt(int fd, nv_handle h)
{
	nv_set_handle(fd, h);
	if (fd == STDIN_FILENO)
		nv_update_stdin();
}

/* clear_handle clears the slot of a descriptor and returns the handle that was in it. */
static nv_handle clear_handle(int fd)
{
	nv_handle h = atomic_exchange(&nv_fds[fd], 0);

	if (fd == STDIN_FILENO && h != 0)
		nv_update_stdin();
	return h;
}

#define UNLOCKED PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
static pthread_rwlock_t changing = UNLOCKED;

static void begin_change(void)
{
	nv_begin_critical();
	pthread_rwlock_rdlock(&changing);
}

static void end_change(void)
{
	pthread_rwlock_unlock(&changing);
	nv_end_critical();
}

/* set_flags is F_SETFD. It takes the lock because replacing a placeholder restores the flags that were read before. */
static int set_flags(int fd, void *flags)
{
	begin_change();
	int r = REAL(fcntl)(fd, F_SETFD, flags);

	end_change();
	return r;
}

/* release drops one reference of an open file. A server sees in the kernel that a descriptor has been closed; it is called
 * nevertheless, so that the process that closes the last one gets the error. */
static int release(nv_handle h)
{
	return h == NV_LOST ? 0 : (int)rt_release(h);
}

/* retain adds one reference of an open file. A server needs none: it sees the duplicate of the socket. */
static int retain(nv_handle h)
{
	return h == NV_LOST || nv_server(h) != 0 ? 0 : (int)rt_retain(h);
}

/* nv_drop_descriptors closes in a child the descriptors of the parent's runtime, and gives those that are ours the handles that
 * the parent has as a server. The kernel copies descriptors before memory. So a descriptor that the runtime has closed between
 * the two is open in the child, but is not in its map. Such sockets are found by their names. */
void nv_drop_descriptors(int server)
{
	unsigned end = atomic_load(&nv_fds_end), low = (unsigned)nv_low_descriptors();

	static const pthread_rwlock_t unlocked = UNLOCKED;

	atomic_store(&pattern, -1);
	changing = unlocked;
	for (unsigned fd = 0; fd < end; fd++) {
		nv_handle h = nv_handle_of((int)fd);

		if (h == NV_RUNTIME_OWNED || (h == 0 && fd >= low && nv_is_sharing_socket((int)fd))) {
			/* Other processes wait until the last copy of a socket is closed. */
			atomic_store(&nv_fds[fd], 0);
			REAL(close)((int)fd);
		} else if (h > 0 && nv_server(h) == 0)
			atomic_store(&nv_fds[fd], server == 0 ? NV_LOST : nv_remote(h, server));
	}
}

/* replace_all makes all descriptors of h duplicates of placeholder. */
static void replace_all(nv_handle h, int placeholder)
{
	unsigned end = atomic_load(&nv_fds_end);

	for (unsigned fd = 0; fd < end; fd++) {
		if (nv_handle_of((int)fd) != h)
			continue;
		int flags = REAL(fcntl)((int)fd, F_GETFD);

		REAL(dup3)(placeholder, (int)fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
	}
}

/* nv_replace_placeholders makes all descriptors of h duplicates of placeholder. The caller has blocked signals and has the lock
 * sharing (inherit.c). It waits two seconds for threads that are changing descriptors, and then gives up: dup2 of such a thread
 * may block while it closes a descriptor that is not ours, such as a socket that lingers. After that it does not wait again
 * until the lock is free. */
void nv_replace_placeholders(nv_handle h, int placeholder)
{
	static bool wait = true;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += wait ? 2 : 0;
	wait = pthread_rwlock_timedwrlock(&changing, &until) == 0;
	if (!wait)
		return;
	replace_all(h, placeholder);
	pthread_rwlock_unlock(&changing);
}

/* nv_restore_placeholders replaces the sockets of all open files of this process by plain placeholders. The pattern exists since
 * the first of those files was opened. */
void nv_restore_placeholders(void)
{
	int plain = atomic_load(&pattern);

	for (int fd = 0; plain >= 0 && (unsigned)fd < atomic_load(&nv_fds_end); fd++)
		if (nv_handle_of(fd) > 0 && nv_server(nv_handle_of(fd)) == 0)
			nv_replace_placeholders(nv_handle_of(fd), plain);
}

/* nv_transfer_handles makes all open files of this process files of server, which has taken them over; 0: they are lost. */
void nv_transfer_handles(int server)
{
	for (int fd = 0; (unsigned)fd < atomic_load(&nv_fds_end); fd++) {
		nv_handle h = nv_handle_of(fd);

		if (h > 0 && nv_server(h) == 0)
			atomic_compare_exchange_strong(&nv_fds[fd], &h, server == 0 ? NV_LOST : nv_remote(h, server));
	}
}

/* adopt_duplicate gives fd, which the kernel has just duplicated, the handle h. It ends the change that the caller has begun. */
static int adopt_duplicate(int fd, nv_handle h)
{
	if (fd >= NV_FDS) {
		nv_close_quietly(fd);
		fd = nv_error(EMFILE);
	} else if (fd >= 0 && retain(h) != 0) {
		nv_close_quietly(fd);
		fd = -1;
	}
	if (fd >= 0)
		nv_adopt(fd, h);
	end_change();
	nv_begin_relay(fd);
	return fd;
}

static int new_placeholder(int cloexec)
{
	int fd = REAL(open)("/proc/self", O_PATH | O_NOFOLLOW | cloexec);

	if (fd < 0 && errno == ENOENT) /* without /proc nobody can open /proc/self/fd/N either */
		fd = REAL(open)("/dev/null", O_PATH | cloexec);
	return fd;
}

/* make_pattern makes the pattern; -1: no descriptor is free. In a child of vfork it does nothing: the parent would find the
 * number of a descriptor that it does not have. */
static int make_pattern(void)
{
	if (!nv_owns_memory())
		return -1;
	int none = -1, fd = new_placeholder(O_CLOEXEC);
	int moved = fd < 0 ? -1 : REAL(fcntl)(fd, F_DUPFD_CLOEXEC, nv_low_descriptors());

	if (fd >= 0)
		nv_close_quietly(fd);
	if (moved < 0)
		return -1;
	nv_mark_runtime_owned(moved);
	if (atomic_compare_exchange_strong(&pattern, &none, moved))
		return moved;
	nv_own_descriptor(moved, NV_OWN_CLOSING);
	nv_close_quietly(moved);
	return none; /* another thread has made it first */
}

static int placeholder(int cloexec)
{
	int saved = errno;
	int from = atomic_load(&pattern);

	if (from < 0)
		from = make_pattern();
	int fd = from < 0 ? -1 : REAL(fcntl)(from, cloexec ? F_DUPFD_CLOEXEC : F_DUPFD, 0);

	if (fd >= 0)
		return fd;
	errno = saved;
	return new_placeholder(cloexec);
}

int nv_open(struct nv_path_at *at, int flags, mode_t mode)
{
	nv_invalidate_file_limit();
	int saved = errno;
	int fd = placeholder(flags & O_CLOEXEC);

	if (fd >= NV_FDS) {
		nv_close_quietly(fd);
		return nv_error(EMFILE);
	}
	if (fd < 0)
		return -1;
	nv_handle h = rt_open(at, flags & ~O_CLOEXEC, flags & O_CREAT ? nv_umasked(mode) : 0);

	if (h < 0) {
		nv_close_quietly(fd);
		return -1;
	}
	if (nv_server(h) != 0) { /* the server has sent the socket of the file */
		REAL(dup3)(at->descriptor, fd, flags & O_CLOEXEC);
		REAL(close)(at->descriptor);
	}
	nv_adopt(fd, h);
	nv_begin_relay(fd);
	errno = saved;
	return fd;
}

/* choose tells the runtime that the application is about to put a file on a number of its choice, or has done so. Between the
 * two, threads of the runtime open no descriptors, which could get that number. */
static void choose(bool begins)
{
	if (nv_loaded() && nv_state != NV_INSIDE && nv_owns_memory())
		rt_choose_number(begins);
}

/* nv_close closes a descriptor that may be ours or not. Programs close a standard descriptor to get its number for the file that
 * they open next. */
int nv_close(int fd)
{
	if ((unsigned)fd <= STDERR_FILENO)
		choose(true);
	if (nv_callers_handle(fd) == 0)
		return REAL(close)(fd);
	pthread_testcancel();
	if (nv_handle_of(fd) == NV_RUNTIME_OWNED)
		return nv_error(EBADF);
	nv_connect(nv_handle_of(fd));
	begin_change();
	nv_handle h = clear_handle(fd);

	nv_close_quietly(fd);
	end_change();
	return h == 0 ? nv_error(EBADF) : release(h);
}

/* nv_close_stream closes a stream of libc whose descriptor is ours. The stream has been flushed. */
int nv_close_stream(FILE *stream, int fd)
{
	nv_connect(nv_handle_of(fd));
	begin_change();
	nv_handle h = clear_handle(fd);
	int result = REAL(fclose)(stream), saved = errno;

	end_change();
	if (h != 0 && release(h) != 0)
		return EOF;
	errno = saved;
	return result;
}

int nv_close_range(unsigned first, unsigned last, int flags)
{
	unsigned end = atomic_load(&nv_fds_end);

	if ((flags & CLOSE_RANGE_CLOEXEC) || first > last) {
		begin_change(); /* see set_flags */
		int r = REAL(close_range)(first, last, flags);

		end_change();
		return r;
	}
	for (unsigned fd = first; fd < end && fd <= last; fd++) {
		nv_handle h = nv_handle_of((int)fd);

		if (h != 0 && h != NV_RUNTIME_OWNED)
			nv_close((int)fd);
		if (h != NV_RUNTIME_OWNED)
			continue;
		if (fd > first && REAL(close_range)(first, fd - 1, flags) != 0)
			return -1;
		if (fd == last)
			return 0;
		first = fd + 1;
	}
	return REAL(close_range)(first, last, flags);
}

int nv_dup(int fd, nv_handle h)
{
	/* The runtime has a record lock, which is lost when any descriptor of that file is closed. */
	if (h == NV_RUNTIME_OWNED)
		return nv_error(EBADF);
	begin_change();
	return adopt_duplicate(REAL(dup)(fd), h);
}

/* duplicate is the real dup3 or, if flags is -1, the real dup2. */
static int duplicate(int fd, int newfd, int flags)
{
	choose(true);
	int r = flags == -1 ? REAL(dup2)(fd, newfd) : REAL(dup3)(fd, newfd, flags);

	choose(false);
	return r;
}

/* replace is nv_dup_to where fd or newfd is ours. */
static int replace(int fd, int newfd, int flags)
{
	nv_handle h = nv_handle_of(fd);
	bool fits = (unsigned)newfd < NV_FDS;

	if ((!fits && h != 0) || nv_handle_of(newfd) == NV_RUNTIME_OWNED)
		return nv_error(EBADF);
	if (h != 0 && retain(h) != 0)
		return -1;
	nv_connect(nv_handle_of(newfd));
	begin_change();
	nv_handle before = fits ? clear_handle(newfd) : 0;
	int r = duplicate(fd, newfd, flags);
	int saved = errno;

	if (r < 0 && before != 0)
		nv_adopt(newfd, before);
	if (r >= 0 && h != 0)
		nv_adopt(newfd, h);
	end_change();
	if (r >= 0 && h != 0)
		nv_begin_relay(newfd);
	if (r < 0 && h != 0 && nv_server(h) == 0)
		release(h);
	if (r < 0)
		return nv_error(saved);
	if (before != 0)
		release(before); /* as in the kernel, dup2 does not return errors of closing newfd */
	errno = saved;
	return r;
}

/* nv_dup_to is dup3 or, if flags is -1, dup2. */
int nv_dup_to(int fd, int newfd, int flags)
{
	if (fd == newfd || (nv_handle_of(fd) == 0 && nv_handle_of(newfd) == 0))
		return duplicate(fd, newfd, flags);
	return replace(fd, newfd, flags);
}

int nv_fcntl(int fd, nv_handle h, int cmd, void *arg)
{
	if (h == NV_RUNTIME_OWNED)
		return nv_error(EBADF);
	switch (cmd) {
	case F_DUPFD:
	case F_DUPFD_CLOEXEC:
		begin_change();
		return adopt_duplicate(REAL(fcntl)(fd, cmd, arg), h);
	case F_GETFD:
		return REAL(fcntl)(fd, cmd, arg);
	case F_SETFD:
		return set_flags(fd, arg);
	case F_GETFL:
		return (int)rt_getfl(h);
	case F_SETFL:
		return (int)rt_setfl(h, (int)(intptr_t)arg);
	}
	return nv_fcntl_lock(h, cmd, arg);
}

int nv_ioctl(int fd, unsigned long request)
{
	if (request == FIOCLEX || request == FIONCLEX)
		return set_flags(fd, (void *)(intptr_t)(request == FIOCLEX ? FD_CLOEXEC : 0));
	return nv_error(ENOTTY);
}
