/* What children and executed programs are given of the open files.
 *
 * Before this process forks or executes a program, its placeholders are
 * replaced by descriptors that say which file of which process they stand for,
 * for who has this library, and are of no use to others: posixshim/inherit.go.
 * Processes that have them send their calls here (remote.c).
 *
 * A process that ends while others have files of it, or executes a program that
 * gets some, hands them over to `nvmecr serve`: posixshim/handover.go. */
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* The number that other processes know this one by; 0 before the first. */
static _Atomic uint64_t number;

/* One thread at a time shares: what another one has begun to share is not yet
 * in the place of its descriptors. */
static pthread_mutex_t sharing = PTHREAD_MUTEX_INITIALIZER;

static void lock_sharing(void)
{
	nv_hold();
	pthread_mutex_lock(&sharing);
}

static void unlock_sharing(void)
{
	pthread_mutex_unlock(&sharing);
	nv_let_go();
}

/* share_one puts what stands for a file of this process in the place of its
 * placeholders. */
static void share_one(nv_handle h)
{
	int64_t socket = h > 0 && nv_server(h) == 0 ? rt_share(h) : 0;

	if (socket <= 0)
		return;
	nv_replace_placeholders(h, (int)socket);
	nv_own_descriptor((int)socket, 0);
	REAL(close)((int)socket);
}

static void share_all(void)
{
	struct nv_visit visit;

	if (!nv_enter(&visit))
		return;
	int64_t n = nv_leave(&visit, nv_rt.serve());

	atomic_store(&number, n < 0 ? 0 : (uint64_t)n);
	for (int fd = 0; n > 0 && (unsigned)fd < atomic_load(&nv_ours_end); fd++)
		share_one(nv_ours(fd));
}

/* nv_arm_relay is called when a file of ours may have become descriptor fd. To a standard
 * one programs write past this library, with the streams that the C library has: a file
 * that is open for writing gets a socket there whose bytes are relayed (posixshim/relay.go). */
void nv_arm_relay(int fd)
{
	nv_handle h = (unsigned)fd <= STDERR_FILENO ? nv_ours(fd) : 0;
	int saved = errno;

	if (h <= 0 || nv_server(h) != 0 || !nv_loaded() || nv_state == NV_INSIDE || !nv_own_memory() ||
	    (rt_getfl(h) & O_ACCMODE) == O_RDONLY)
		return;
	lock_sharing();
	share_one(h);
	unlock_sharing();
	errno = saved;
}

/* nv_share_all makes what is open usable in other processes. Where that fails,
 * the runtime has said why, and what they have is EIO. */
void nv_share_all(void)
{
	int saved = errno;

	if (!nv_loaded() || nv_state == NV_INSIDE || !nv_own_memory())
		return;
	lock_sharing();
	share_all();
	unlock_sharing();
	errno = saved;
}

int nv_sharing(bool shared)
{
	static const pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
	uint64_t parent = atomic_exchange(&number, 0);
	int server = parent == 0 || !shared ? 0 : nv_add_server(parent);

	sharing = free_lock;
	if (server != 0)
		atomic_store(&nv_home, server);
	return server;
}

/* adopt notes what fd stands for, if it was given to the program to be executed. */
NV_EARLY_CODE static void adopt(int fd)
{
	nv_handle h = nv_token(fd);

	if (h == 0)
		return;
	nv_adopt(fd, h);
	if (atomic_load(&nv_home) == 0)
		atomic_store(&nv_home, nv_server(h));
}

/* How many descriptors are looked at in one go; programs hardly have more than
 * a few. */
#define FEW 64
#define CHUNK 512

/* adopt_some adopts those of n numbers; false if none of them is open. poll tells
 * which are, in a tenth of the time that reading /proc/self/fd takes. */
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

/* none_behind says that no descriptor behind the first FEW is open. Of one that
 * is not open, select says EBADF, unless it lies behind all that the process has
 * had: those it does not look at (BUGS in select(2)). A kernel that did would only
 * cost us the time of looking for more. */
NV_EARLY_CODE static bool none_behind(void)
{
	unsigned long set[FEW / (8 * sizeof(unsigned long)) + 1] = {[FEW / (8 * sizeof(unsigned long))] = 1};
	struct timespec none = {0, 0};

	return nv_kernel(SYS_fcntl, FEW, F_GETFD) < 0 && nv_kernel(SYS_pselect6, FEW + 1, set, 0, 0, &none, 0) == 0;
}

/* What only glibc has. */
extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library) __attribute__((weak));

/* nv_find_descriptors is called before main: it adopts those that the program
 * was given, up to where a chunk of numbers has none. A program of musl has them
 * as one without the library: its streams are not glibc's. */
NV_EARLY_CODE void nv_find_descriptors(void)
{
	if (__register_atfork == NULL)
		return;
	struct rlimit limit;
	int saved = errno;
	bool few = nv_kernel(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &limit) == 0 && limit.rlim_cur < NV_FDS;
	int end = few ? (int)limit.rlim_cur : NV_FDS;

	adopt_some(0, end < FEW ? end : FEW);
	if (end > FEW && !none_behind())
		for (int first = FEW, next = 2 * CHUNK; adopt_some(first, (end < next ? end : next) - first); next += CHUNK)
			first = next;
	errno = saved;
}

/* ---- the end, and executing ---- */

static bool may_call(void)
{
	return nv_loaded() && nv_state != NV_INSIDE && nv_own_memory();
}

/* others_have says that another process has files of this one. They show once
 * nothing here stands for a file. The caller shares. */
static bool others_have(int ends)
{
	nv_take_back();
	return rt_alone(ends) > 0;
}

/* given says that the program to be executed gets files that this process has open. */
static bool given(void)
{
	for (int fd = 0; (unsigned)fd < atomic_load(&nv_ours_end); fd++)
		if (nv_ours(fd) > 0 && nv_server(nv_ours(fd)) == 0 && !(REAL(fcntl)(fd, F_GETFD) & FD_CLOEXEC))
			return true;
	return false;
}

/* hand_over gives what others have of this process to `nvmecr serve`, which they
 * find by the name that they know. If this process goes on, it asks there as well. */
static bool hand_over(int executes)
{
	int64_t n = rt_hand_over(executes);

	if (n <= 0) /* there is nothing, or the runtime has said why not */
		return false;
	int server = nv_add_server((uint64_t)n);

	atomic_store(&number, 0);
	nv_give_away(server);
	atomic_store(&nv_home, server);
	nv_working_redirected();
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

/* hand_on is called before a program is executed. All that is open goes, if anything does: the
 * kernel then closes what the program does not get. */
static bool hand_on(void)
{
	bool needed = given() || others_have(0);

	if (needed)
		share_all();
	return needed && hand_over(1);
}

/* nv_before_exec is called before this process executes a program: what that or another
 * process has open goes to `nvmecr serve`, or else the partition is given up. */
void nv_before_exec(void)
{
	int saved = errno;

	if (!may_call())
		return;
	lock_sharing();
	if (!hand_on() && rt_give_up() != 0)
		nv_complain("what process %d wrote under %s before it executed a program may not be complete: %m", (int)getpid(), nv_mount);
	unlock_sharing();
	errno = saved;
}

/* nv_exec_failed is called when the program could not be executed. What was given up is taken
 * back by the next call, which this is; what was handed over stays there. */
int nv_exec_failed(void)
{
	int saved = errno;

	if (may_call())
		rt_syncfs();
	nv_share_all(); /* this process goes on, and serves */
	return nv_error(saved);
}
