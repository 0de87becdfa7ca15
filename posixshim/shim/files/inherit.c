/* Inheritance of open files by children and executed programs.
 *
 * Before this process forks or executes a program, sockets replace its placeholders. The name of a socket says which file of
 * which process it is (posixshim/inherit.go). A process with this library sends its calls on such a descriptor to that process
 * (remote.c). Other programs can write to the socket (posixshim/relay.go). For reading they get a file of the view instead.
 *
 * Before a process ends, or executes a program, it hands over the files that other processes have open to nvmecr serve
 * (posixshim/handover.go). */
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* The number by which other processes address this one; 0: it has shared no file yet. */
static _Atomic uint64_t number;

/* Held by the thread that shares files, until the sockets are in the place of all descriptors of the files. */
static pthread_mutex_t sharing = PTHREAD_MUTEX_INITIALIZER;

static void lock_sharing(void)
{
	nv_begin_critical();
	pthread_mutex_lock(&sharing);
}

static void unlock_sharing(void)
{
	pthread_mutex_unlock(&sharing);
	nv_end_critical();
}

/* share_one puts the socket of an open file in the place of the file's placeholders, unless it is there already. */
static void share_one(nv_handle h)
{
	int64_t socket = h > 0 && nv_server(h) == 0 ? rt_share(h) : 0;

	if (socket <= 0)
		return;
	nv_replace_placeholders(h, (int)socket);
	nv_own_descriptor((int)socket, NV_OWN_CLOSING);
	REAL(close)((int)socket);
}

static void share_all(void)
{
	struct nv_visit visit;

	if (!nv_enter(&visit))
		return;
	int64_t n = nv_rt.serve();

	nv_host = (uint64_t)nv_rt.host_server();
	n = nv_leave(&visit, n);
	atomic_store(&number, n < 0 ? 0 : (uint64_t)n);
	for (int fd = 0; n > 0 && (unsigned)fd < atomic_load(&nv_fds_end); fd++)
		share_one(nv_handle_of(fd));
}

/* nv_begin_relay is called when a descriptor may have become ours. The standard streams of libc write to standard descriptors
 * from inside libc, which is not intercepted. So a standard descriptor of a file that is open for writing becomes a socket at once,
 * and the runtime writes to the file what it receives there (posixshim/relay.go). */
void nv_begin_relay(int fd)
{
	nv_handle h = (unsigned)fd <= STDERR_FILENO ? nv_handle_of(fd) : 0;
	int saved = errno;

	if (h <= 0 || nv_server(h) != 0 || !nv_loaded() || nv_state == NV_INSIDE || !nv_owns_memory() ||
	    (rt_getfl(h) & O_ACCMODE) == O_RDONLY)
		return;
	lock_sharing();
	share_one(h);
	unlock_sharing();
	errno = saved;
}

/* nv_share_all shares all open files, before a child is made. If that fails the runtime has printed why, and calls of the child
 * on the files fail with EIO. */
void nv_share_all(void)
{
	int saved = errno;

	if (!nv_loaded() || nv_state == NV_INSIDE || !nv_owns_memory())
		return;
	lock_sharing();
	share_all();
	unlock_sharing();
	errno = saved;
}

/* nv_parent_server is called in a forked child. If the parent has shared its files it returns the parent as a server, which then
 * is the default one; otherwise 0. */
int nv_parent_server(bool shared)
{
	static const pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
	uint64_t parent = atomic_exchange(&number, 0);
	int server = parent == 0 || !shared ? 0 : nv_add_server(parent);

	sharing = free_lock;
	if (server != 0 || (nv_needs_server() && atomic_load(&nv_default_server) == 0))
		atomic_store(&nv_default_server, server != 0 ? server : nv_host_server());
	return server;
}

/* adopt adds fd to the map if it is the socket of a file that another process has shared. */
NV_EARLY_CODE static void adopt(int fd)
{
	nv_handle h = nv_shared_handle(fd);

	if (h == 0)
		return;
	nv_adopt(fd, h);
	if (atomic_load(&nv_default_server) == 0)
		atomic_store(&nv_default_server, nv_server(h));
}

/* How many numbers are checked at a time. Few programs are started with descriptors from FEW on. */
#define FEW 64
#define CHUNK 512

/* adopt_some adopts descriptors among n numbers from first on; false: none of these is open. It finds the open ones with poll,
 * which takes a tenth of the time of reading /proc/self/fd. */
NV_EARLY_CODE static bool adopt_some(int first, int n)
{
	struct pollfd p[n > 0 ? n : 1];
	struct timespec none = {0, 0};
	bool any = false;

	for (int i = 0; i < n; i++)
		p[i] = (struct pollfd){.fd = first + i};
	if (n <= 0 || nv_kernel(SYS_ppoll, p, n, &none, 0, 0) < 0)
		return false;
	for (int i = 0; i < n; i++)
		if (!(p[i].revents & POLLNVAL)) {
			any = true;
			adopt(p[i].fd);
		}
	return any;
}

/* none_above says that no descriptor from FEW on is open. select fails with EBADF for a number that is not open, but does not
 * check numbers above the highest one that the process has had (BUGS in select(2)). If a later kernel checks them, this returns
 * false, and descriptors are searched for in vain. */
NV_EARLY_CODE static bool none_above(void)
{
	unsigned long set[FEW / (8 * sizeof(unsigned long)) + 1] = {[FEW / (8 * sizeof(unsigned long))] = 1};
	struct timespec none = {0, 0};

	return nv_kernel(SYS_fcntl, FEW, F_GETFD) < 0 && nv_kernel(SYS_pselect6, FEW + 1, set, 0, 0, &none, 0) == 0;
}

/* A function that glibc has and musl has not. */
extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library) __attribute__((weak));

/* nv_init_descriptors is called before main. It adopts inherited descriptors, up to the first CHUNK of numbers of which none is
 * open. In a program of musl, whose streams differ from glibc's, no descriptor is ours. */
NV_EARLY_CODE void nv_init_descriptors(void)
{
	if (__register_atfork == NULL)
		return;
	struct rlimit limit;
	int saved = errno;
	bool few = nv_kernel(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &limit) == 0 && limit.rlim_cur < NV_FDS;
	int end = few ? (int)limit.rlim_cur : NV_FDS;

	adopt_some(0, end < FEW ? end : FEW);
	if (end > FEW && !none_above())
		for (int first = FEW, next = 2 * CHUNK; adopt_some(first, (end < next ? end : next) - first); next += CHUNK)
			first = next;
	errno = saved;
}

/* ---- exit and exec ---- */

static bool may_call(void)
{
	return nv_loaded() && nv_state != NV_INSIDE && nv_owns_memory();
}

/* others_have says whether other processes have files of this one open. The runtime sees that by the sockets, when this process
 * has no copies of them any more. The caller has the lock sharing. */
static bool others_have(int ends)
{
	nv_restore_placeholders();
	return rt_alone(ends) > 0;
}

static bool passes(int fd)
{
	return nv_handle_of(fd) > 0 && !(REAL(fcntl)(fd, F_GETFD) & FD_CLOEXEC);
}

/* nv_passes_files says whether a program that is executed inherits open files that are ours; local: of this process. */
bool nv_passes_files(bool local)
{
	for (int fd = 0; (unsigned)fd < atomic_load(&nv_fds_end); fd++)
		if (!(local && nv_server(nv_handle_of(fd)) != 0) && passes(fd))
			return true;
	return false;
}

/* open_by_kernel opens in the view the file h, which is open for reading only, at its offset; -1: it is open otherwise, or the view
 * does not have it by its name. With --view=job the view shows what this process has written once that is synced. */
static int open_by_kernel(nv_handle h)
{
	struct stat ours, kernels;
	char buf[NV_PATH];
	const char *path = (rt_getfl(h) & (O_ACCMODE | O_PATH)) == O_RDONLY ? nv_kernel_path_of(h, NV_OPEN, buf) : NULL;
	int fd = path == NULL || rt_fsync(h) != 0 ? -1 : REAL(open)(path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0 && rt_fstat(h, &ours, sizeof ours) == 0 && REAL(fstat)(fd, &kernels) == 0 &&
	    ((ours.st_ino ^ kernels.st_ino) & NV_VIEW_INO) == 0 && ours.st_size <= kernels.st_size &&
	    REAL(lseek)(fd, rt_seek(h, 0, SEEK_CUR), SEEK_SET) >= 0)
		return fd;
	nv_close_quietly(fd);
	return -1;
}

/* nv_pass_by_view is called before a program without this library is executed. To that the socket of a file that it inherits
 * for reading is of no use. A file of the view takes the place of the socket, with an offset of its own. If the program cannot be
 * executed, this process continues with that file. */
void nv_pass_by_view(void)
{
	int saved = errno;

	for (int fd = 0; (unsigned)fd < atomic_load(&nv_fds_end); fd++) {
		int file = passes(fd) ? open_by_kernel(nv_handle_of(fd)) : -1;

		if (file >= 0)
			nv_dup_to(file, fd, 0);
		nv_close_quietly(file);
	}
	errno = saved;
}

/* hand_over gives nvmecr serve the open files that other processes have, and this process's number. After that, this process too
 * is served by nvmecr serve. */
static bool hand_over(int executes)
{
	int64_t n = rt_hand_over(executes);

	if (n <= 0) /* nothing to hand over, or an error that the runtime has printed */
		return false;
	int server = nv_add_server((uint64_t)n);

	atomic_store(&number, 0);
	nv_transfer_handles(server);
	atomic_store(&nv_default_server, server);
	nv_cwd_redirected();
	return true;
}

/* nv_hand_over is called at the end of the process. */
void nv_hand_over(void)
{
	lock_sharing();
	if (others_have(1))
		hand_over(0);
	unlock_sharing();
}

/* hand_over_for_exec hands over all open files if the program inherits one or another process has one. The kernel closes those
 * descriptors that the program does not inherit. */
static bool hand_over_for_exec(void)
{
	bool needed = nv_passes_files(true) || others_have(0);

	if (needed)
		share_all();
	return needed && hand_over(1);
}

/* nv_before_exec is called before this process executes a program. It hands over open files, or gives up the partition. */
void nv_before_exec(void)
{
	int saved = errno;

	if (!may_call())
		return;
	lock_sharing();
	if (!hand_over_for_exec() && rt_give_up() != 0)
		nv_complain("what process %d wrote under %s before it executed a program may not be complete: %m", (int)getpid(), nv_mount);
	unlock_sharing();
	errno = saved;
}

/* nv_exec_failed is called when the program could not be executed. rt_syncfs opens the partition again that was given up. Files
 * that were handed over stay with nvmecr serve. */
int nv_exec_failed(void)
{
	int saved = errno;

	if (may_call())
		rt_syncfs();
	nv_share_all(); /* other processes may need this one as their server again */
	return nv_error(saved);
}
