/* Record locks and flock.
 *
 * The runtime keeps the locks, and no call of the runtime waits for one. A call that has to wait repeats its attempt here, so that
 * a signal can interrupt it. Between attempts it sleeps in ppoll, and signals other than faults are unblocked only there: a
 * signal that arrived during an attempt would not interrupt the wait. */
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include "nv.h"

/* The longest time between two attempts, in nanoseconds. */
#define LONGEST 2000000

/* block_signals blocks all signals but those of faults, and stores the mask before in mask. */
static void block_signals(sigset_t *mask)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
	sigset_t all;

	sigfillset(&all);
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		sigdelset(&all, faults[i]);
	pthread_sigmask(SIG_BLOCK, &all, mask);
}

/* restarts says whether all handlers have SA_RESTART. Then the call is restarted, whichever signal it was. */
static bool restarts(void)
{
	struct sigaction act;

	for (int signum = 1; signum < NSIG; signum++)
		if (REAL(sigaction)(signum, NULL, &act) == 0 && act.sa_handler != SIG_DFL && act.sa_handler != SIG_IGN &&
		    (act.sa_flags & SA_RESTART) == 0)
			return false;
	return true;
}

/* wait_longer sleeps, twice as long each time; false: a signal ends the call. A thread that is cancelled in it ends with signals
 * blocked. */
static bool wait_longer(long *ns, const sigset_t *mask)
{
	struct timespec t = {.tv_nsec = *ns};

	*ns = *ns < LONGEST / 2 ? 2 * *ns : LONGEST;
	return REAL(ppoll)(NULL, 0, &t, mask) == 0 || restarts();
}

/* try_record and try_flock make one attempt. */
static int try_record(nv_handle h, int cmd, struct flock *lock)
{
	return (int)rt_lock(h, getpid(), cmd, lock, sizeof *lock);
}

static int try_flock(nv_handle h, int operation, struct flock *unused)
{
	(void)unused;
	return (int)rt_flock(h, operation);
}

/* get makes one attempt or, with wait, attempts until one succeeds or fails with another error than EAGAIN, or a signal ends the
 * call. */
static int get(int (*attempt)(nv_handle, int, struct flock *), nv_handle h, int cmd, struct flock *lock, bool wait)
{
	long ns = 10000;
	sigset_t mask;

	if (wait)
		pthread_testcancel();
	int saved = errno, r = attempt(h, cmd, lock);

	if (r != 0 && errno == EAGAIN && wait) {
		block_signals(&mask);
		do
			r = attempt(h, cmd, lock);
		while (r != 0 && errno == EAGAIN && wait_longer(&ns, &mask));
		pthread_sigmask(SIG_SETMASK, &mask, NULL);
	}
	if (r == 0)
		errno = saved;
	return r;
}

int nv_fcntl_lock(nv_handle h, int cmd, struct flock *lock)
{
	bool wait = cmd == F_SETLKW || cmd == F_OFD_SETLKW;

	switch (cmd) {
	case F_GETLK:
	case F_OFD_GETLK:
	case F_SETLK:
	case F_OFD_SETLK:
	case F_SETLKW:
	case F_OFD_SETLKW:
		if (nv_near_null(lock))
			return nv_error(EFAULT);
		return get(try_record, h, !wait ? cmd : cmd == F_SETLKW ? F_SETLK : F_OFD_SETLK, lock, wait);
	}
	return nv_error(EINVAL);
}

int nv_flock(nv_handle h, int operation)
{
	int kind = operation & ~LOCK_NB;

	if (kind != LOCK_SH && kind != LOCK_EX && kind != LOCK_UN)
		return nv_error(EINVAL);
	return get(try_flock, h, kind, NULL, (operation & LOCK_NB) == 0);
}

int nv_lockf(nv_handle h, int command, off_t length)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_len = length};

	switch (command) {
	case F_ULOCK:
	case F_LOCK:
	case F_TLOCK:
		lock.l_type = command == F_ULOCK ? F_UNLCK : F_WRLCK;
		return get(try_record, h, F_SETLK, &lock, command == F_LOCK);
	case F_TEST:
		lock.l_type = F_RDLCK;
		if (get(try_record, h, F_GETLK, &lock, false) != 0)
			return -1;
		return lock.l_type == F_UNLCK || lock.l_pid == getpid() ? 0 : nv_error(EACCES);
	}
	return nv_error(EINVAL);
}
