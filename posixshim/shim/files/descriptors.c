/* The map from descriptors to open file descriptions of the runtime.
 *
 * A descriptor of ours is a placeholder in the kernel, an O_PATH descriptor of
 * the symbolic link /proc/self: its number is taken, it can be duplicated and
 * closed, and whoever has it without this library cannot lose data with it.
 * Reading and writing are EBADF, opening /dev/stdout or /proc/self/fd/N anew
 * is ELOOP (it would succeed with /dev/null), as a directory it is ENOTDIR.
 *
 * A file that other processes have too has a socket in its place, which tells
 * them what it is (inherit.c).
 *
 * The runtime's own descriptors are in the map as well, behind the numbers
 * that applications use, so that those who close all they can think of, or
 * put a file on a number of their choice, do not meet them. */
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* The descriptor that placeholders are duplicates of, which costs a quarter of
 * opening each; -1 before the first. It is the runtime's. */
static _Atomic int pattern = -1;

/* nv_adopt notes what a descriptor stands for. */
void nv_adopt(int fd, nv_handle h)
{
	nv_put(fd, h);
	if (fd == STDIN_FILENO)
		nv_standard_input();
}

/* unset empties the slot of a descriptor and returns what was in it. */
static nv_handle unset(int fd)
{
	nv_handle h = atomic_exchange(&nv_fds[fd], 0);

	if (fd == STDIN_FILENO && h != 0)
		nv_standard_input();
	return h;
}

/* Those who change a descriptor of ours have it for reading. Who replaces placeholders, which would bring back what
 * they close, has it for writing. */
#define UNLOCKED PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
static pthread_rwlock_t changing = UNLOCKED;

static void begin_change(void)
{
	nv_hold();
	pthread_rwlock_rdlock(&changing);
}

static void end_change(void)
{
	pthread_rwlock_unlock(&changing);
	nv_let_go();
}

/* set_flags is F_SETFD. What replaces placeholders meanwhile would put back the
 * flags that it has found. */
static int set_flags(int fd, void *flags)
{
	begin_change();
	int r = REAL(fcntl)(fd, F_SETFD, flags);

	end_change();
	return r;
}

/* drop gives a handle back. The process that has the file learns from the
 * kernel that a descriptor is closed, and is told so that the last one to close
 * it sees the outcome. */
static int drop(nv_handle h)
{
	return h == NV_LOST ? 0 : (int)rt_release(h);
}

static int keep(nv_handle h)
{
	return h == NV_LOST || nv_server(h) != 0 ? 0 : (int)rt_retain(h);
}

/* The kernel copies the descriptors before the memory: what the runtime has
 * closed in between is open in the child, and not in the map any more. */
void nv_drop_descriptors(int server)
{
	unsigned end = atomic_load(&nv_ours_end), low = (unsigned)nv_low_descriptors();

	static const pthread_rwlock_t unlocked = UNLOCKED;

	atomic_store(&pattern, -1);
	changing = unlocked;
	for (unsigned fd = 0; fd < end; fd++) {
		nv_handle h = nv_ours((int)fd);

		if (h == NV_RUNTIMES || (h == 0 && fd >= low && nv_named((int)fd))) {
			/* Others must notice when the parent ends. */
			atomic_store(&nv_fds[fd], 0);
			REAL(close)((int)fd);
		} else if (h > 0 && nv_server(h) == 0)
			atomic_store(&nv_fds[fd], server == 0 ? NV_LOST : nv_remote(h, server));
	}
}

/* put_in_place makes the descriptors of h, from fd on, duplicates of stand_in. */
static void put_in_place(nv_handle h, int stand_in)
{
	unsigned end = atomic_load(&nv_ours_end);

	for (unsigned fd = 0; fd < end; fd++) {
		if (nv_ours((int)fd) != h)
			continue;
		int flags = REAL(fcntl)((int)fd, F_GETFD);

		REAL(dup3)(stand_in, (int)fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
	}
}

/* nv_replace_placeholders puts stand_in in the place of all descriptors of h, with signals blocked. One thread at a
 * time does. It gives up when another thread does not get on, which with dup2 may be closing something that is not
 * ours, such as a connection that lingers; and then hardly waits again. */
void nv_replace_placeholders(nv_handle h, int stand_in)
{
	static bool patient = true;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += patient ? 2 : 0;
	patient = pthread_rwlock_timedwrlock(&changing, &until) == 0;
	if (!patient)
		return;
	put_in_place(h, stand_in);
	pthread_rwlock_unlock(&changing);
}

/* nv_take_back puts plain placeholders in the place of all descriptors of files
 * of this process. It needs the pattern, which is there since the first of them. */
void nv_take_back(void)
{
	int plain = atomic_load(&pattern);

	for (int fd = 0; plain >= 0 && (unsigned)fd < atomic_load(&nv_ours_end); fd++)
		if (nv_ours(fd) > 0 && nv_server(nv_ours(fd)) == 0)
			nv_replace_placeholders(nv_ours(fd), plain);
}

/* nv_give_away notes that another process has the files of this one from now on. */
void nv_give_away(int server)
{
	for (int fd = 0; (unsigned)fd < atomic_load(&nv_ours_end); fd++) {
		nv_handle h = nv_ours(fd);

		if (h > 0 && nv_server(h) == 0)
			atomic_compare_exchange_strong(&nv_fds[fd], &h, server == 0 ? NV_LOST : nv_remote(h, server));
	}
}

/* share makes fd, a duplicate that the kernel has just made, refer to h. It ends
 * the change that the caller has begun. */
static int share(int fd, nv_handle h)
{
	if (fd >= NV_FDS) {
		nv_close_quietly(fd);
		fd = nv_error(EMFILE);
	} else if (fd >= 0 && keep(h) != 0) {
		nv_close_quietly(fd);
		fd = -1;
	}
	if (fd >= 0)
		nv_adopt(fd, h);
	end_change();
	nv_arm_relay(fd);
	return fd;
}

static int new_placeholder(int cloexec)
{
	int fd = REAL(open)("/proc/self", O_PATH | O_NOFOLLOW | cloexec);

	if (fd < 0 && errno == ENOENT) /* nothing can be opened anew without /proc */
		fd = REAL(open)("/dev/null", O_PATH | cloexec);
	return fd;
}

/* keep_pattern makes the pattern; -1 where there is no number for it. A vfork
 * child would make one that its parent does not have. */
static int keep_pattern(void)
{
	if (!nv_own_memory())
		return -1;
	int none = -1, fd = new_placeholder(O_CLOEXEC);
	int moved = fd < 0 ? -1 : REAL(fcntl)(fd, F_DUPFD_CLOEXEC, nv_low_descriptors());

	if (fd >= 0)
		nv_close_quietly(fd);
	if (moved < 0)
		return -1;
	nv_own_in_place(moved);
	if (atomic_compare_exchange_strong(&pattern, &none, moved))
		return moved;
	nv_own_descriptor(moved, 0);
	nv_close_quietly(moved);
	return none; /* another thread's */
}

static int placeholder(int cloexec)
{
	int saved = errno;
	int from = atomic_load(&pattern);

	if (from < 0)
		from = keep_pattern();
	int fd = from < 0 ? -1 : REAL(fcntl)(from, cloexec ? F_DUPFD_CLOEXEC : F_DUPFD, 0);

	if (fd >= 0)
		return fd;
	errno = saved;
	return new_placeholder(cloexec);
}

int nv_open(struct nv_path_at *at, int flags, mode_t mode)
{
	nv_forget_file_limit();
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
	if (nv_server(h) != 0) { /* the other process has sent what stands for it */
		REAL(dup3)(at->descriptor, fd, flags & O_CLOEXEC);
		REAL(close)(at->descriptor);
	}
	nv_adopt(fd, h);
	nv_arm_relay(fd);
	errno = saved;
	return fd;
}

/* choose tells the runtime, threads of which may be opening descriptors, that the application is about to give a number of
 * its choice to a file, or has. */
static void choose(bool begins)
{
	if (nv_loaded() && nv_state != NV_INSIDE && nv_own_memory())
		rt_choose_number(begins);
}

/* nv_close closes a descriptor that may be ours or not. The number of a standard one is often wanted again at once, for the
 * next file that is opened. */
int nv_close(int fd)
{
	if ((unsigned)fd <= STDERR_FILENO)
		choose(true);
	if (nv_called_with(fd) == 0)
		return REAL(close)(fd);
	pthread_testcancel();
	if (nv_ours(fd) == NV_RUNTIMES)
		return nv_error(EBADF);
	nv_reach(nv_ours(fd));
	begin_change();
	nv_handle h = unset(fd);

	nv_close_quietly(fd);
	end_change();
	return h == 0 ? nv_error(EBADF) : drop(h);
}

/* nv_close_stream closes a stream of the C library's, which has nothing left to write and whose
 * descriptor is ours. */
int nv_close_stream(FILE *stream, int fd)
{
	nv_reach(nv_ours(fd));
	begin_change();
	nv_handle h = unset(fd);
	int result = REAL(fclose)(stream), saved = errno;

	end_change();
	if (h != 0 && drop(h) != 0)
		return EOF;
	errno = saved;
	return result;
}

int nv_close_range(unsigned first, unsigned last, int flags)
{
	unsigned end = atomic_load(&nv_ours_end);

	if ((flags & CLOSE_RANGE_CLOEXEC) || first > last) {
		begin_change(); /* like set_flags */
		int r = REAL(close_range)(first, last, flags);

		end_change();
		return r;
	}
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

int nv_dup(int fd, nv_handle h)
{
	/* Closing a duplicate of the runtime's lock would drop the lock. */
	if (h == NV_RUNTIMES)
		return nv_error(EBADF);
	begin_change();
	return share(REAL(dup)(fd), h);
}

/* duplicate is the kernel's dup3 with flags or, if flags is -1, its dup2. */
static int duplicate(int fd, int newfd, int flags)
{
	choose(true);
	int r = flags == -1 ? REAL(dup2)(fd, newfd) : REAL(dup3)(fd, newfd, flags);

	choose(false);
	return r;
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
	nv_reach(nv_ours(newfd));
	begin_change();
	nv_handle before = fits ? unset(newfd) : 0;
	int r = duplicate(fd, newfd, flags);
	int saved = errno;

	if (r < 0 && before != 0)
		nv_adopt(newfd, before);
	if (r >= 0 && h != 0)
		nv_adopt(newfd, h);
	end_change();
	if (r >= 0 && h != 0)
		nv_arm_relay(newfd);
	if (r < 0 && h != 0 && nv_server(h) == 0)
		drop(h);
	if (r < 0)
		return nv_error(saved);
	if (before != 0)
		drop(before); /* like the kernel, dup2 does not tell of it */
	errno = saved;
	return r;
}

/* nv_dup_to is dup3 or, if flags is -1, dup2. */
int nv_dup_to(int fd, int newfd, int flags)
{
	if (fd == newfd || (nv_ours(fd) == 0 && nv_ours(newfd) == 0))
		return duplicate(fd, newfd, flags);
	return replace(fd, newfd, flags);
}

int nv_fcntl(int fd, nv_handle h, int cmd, void *arg)
{
	if (h == NV_RUNTIMES)
		return nv_error(EBADF);
	switch (cmd) {
	case F_DUPFD:
	case F_DUPFD_CLOEXEC:
		begin_change();
		return share(REAL(fcntl)(fd, cmd, arg), h);
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
