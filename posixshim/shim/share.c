/* What children and executed programs are given of the open files.
 *
 * Before this process forks or executes a program, its placeholders are
 * replaced by descriptors that say which file of which process they stand for,
 * for who has this library, and are of no use to others: posixshim/share.go.
 * Those who have them send their calls here (far.c).
 *
 * A process that would execute a program with files of its own stays, serves
 * them, and lets a child execute it. */
#include <dirent.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

/* The number that other processes know this one by; 0 before the first. */
static _Atomic uint64_t number;

static int64_t stand_in(nv_handle h)
{
	struct nv_visit visit;
	int64_t fd = -1;

	if (nv_enter(&visit))
		fd = nv_leave(&visit, nv_rt.share(h));
	return fd;
}

/* One thread at a time shares: what another one has begun to share is not yet
 * in the place of its descriptors. */
static pthread_mutex_t sharing = PTHREAD_MUTEX_INITIALIZER;

static void lock_sharing(sigset_t *before)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
	pthread_mutex_lock(&sharing);
}

static void unlock_sharing(const sigset_t *before)
{
	pthread_mutex_unlock(&sharing);
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* share_one puts what stands for a file of this process in the place of its
 * placeholders. */
static void share_one(nv_handle h)
{
	int64_t socket = h > 0 && nv_server(h) == 0 ? stand_in(h) : 0;

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

/* nv_carry is called when a file of ours may have become descriptor fd. To a standard
 * one programs write past this library, with the streams that the C library has: a file
 * that is open for writing gets there what carries that (posixshim/carry.go). */
void nv_carry(int fd)
{
	nv_handle h = (unsigned)fd <= STDERR_FILENO ? nv_ours(fd) : 0;
	sigset_t before;
	int saved = errno;

	if (h <= 0 || nv_server(h) != 0 || !nv_loaded() || nv_state == NV_INSIDE || !nv_own_memory() ||
	    (rt_getfl(h) & O_ACCMODE) == O_RDONLY)
		return;
	lock_sharing(&before);
	share_one(h);
	unlock_sharing(&before);
	errno = saved;
}

/* nv_share_all makes what is open usable in other processes. Where that fails,
 * the runtime has said why, and what they have is EIO. */
void nv_share_all(void)
{
	sigset_t before;
	int saved = errno;

	if (!nv_loaded() || nv_state == NV_INSIDE || !nv_own_memory())
		return;
	lock_sharing(&before);
	share_all();
	unlock_sharing(&before);
	errno = saved;
}

int nv_sharing(void)
{
	static const pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
	uint64_t parent = atomic_exchange(&number, 0);
	int server = parent == 0 ? 0 : nv_add_server(parent);

	sharing = free_lock;
	if (server != 0)
		atomic_store(&nv_home, server);
	return server;
}

void nv_forget_sharing(void)
{
	atomic_store(&number, 0);
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

/* ---- executing ---- */

/* others_have says that another process has files of this one. They show once
 * nothing here stands for a file; what a child is to have then is shared anew. */
static bool others_have(void)
{
	sigset_t before;

	lock_sharing(&before);
	nv_take_back();
	int64_t n = rt_alone();

	unlock_sharing(&before);
	return n > 0;
}

/* needed says that the program to be executed, or another process, has files
 * that this process has open, and that would end with it. */
static bool needed(void)
{
	if (!nv_loaded() || nv_state == NV_INSIDE || !nv_own_memory())
		return false;
	for (int fd = 0; (unsigned)fd < atomic_load(&nv_ours_end); fd++)
		if (nv_ours(fd) > 0 && nv_server(nv_ours(fd)) == 0 && !(REAL(fcntl)(fd, F_GETFD) & FD_CLOEXEC))
			return true;
	return others_have();
}

static bool may_call(void)
{
	return nv_loaded() && nv_state != NV_INSIDE && nv_own_memory();
}

static void give_up(void)
{
	int saved = errno;

	if (may_call() && rt_give_up() != 0)
		nv_complain("what process %d wrote under %s before it executed a program may not be complete: %m", (int)getpid(), nv_mount);
	errno = saved;
}

/* take_back is called when the program could not be executed: what give_up has given up is taken
 * back by the next call. */
static void take_back(void)
{
	int saved = errno;

	if (may_call())
		rt_syncfs();
	errno = saved;
}

/* The process that executes in our place. */
static volatile pid_t deputy;

/* pass_on gives a signal that was sent to this process to the deputy. One from
 * the terminal has reached that already. */
static void pass_on(int signum, siginfo_t *info, void *context)
{
	(void)context;
	if (info->si_code <= 0)
		kill(deputy, signum);
}

static const int passed[] = {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGCONT, SIGWINCH};

/* take_signals makes this process one that has executed a program, but for the
 * signals that it passes on. */
static void take_signals(void)
{
	struct sigaction now, pass = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
	struct sigaction none = {.sa_handler = SIG_DFL};
	sigset_t empty;

	for (int signum = 1; signum < NSIG; signum++)
		if (nv_sigaction(signum, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
			nv_sigaction(signum, &none, NULL);
	for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
		REAL(sigaction)(passed[i], &pass, NULL);
	REAL(signal)(SIGPIPE, SIG_IGN);
	sigemptyset(&empty);
	pthread_sigmask(SIG_SETMASK, &empty, NULL);
}

/* What a process that stays behind closes. Its other threads go on, since nobody
 * can end them, so no number becomes free (nv_retire): what they use is EBADF. The
 * order is: first our files, which may be other processes', who are asked and may
 * be asking this one; then, with the runtime hushed, which must not lose what it
 * is opening, descriptors that the shim knows nothing of. */
static void close_ours(void)
{
	nv_working_elsewhere();
	for (int fd = 0; (unsigned)fd < atomic_load(&nv_ours_end); fd++)
		if (nv_ours(fd) != 0)
			nv_retire(fd);
}

/* close_others closes those for which such is true. */
static void close_others(bool (*such)(int fd))
{
	int hushed = (int)rt_hush();
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] != '.' && fd != dirfd(dir) && nv_ours(fd) == 0 && such(fd))
			nv_retire(fd);
	}
	if (dir != NULL)
		closedir(dir);
	if (hushed == 0)
		rt_unhush();
}

/* We may have something to say on stderr. */
static bool but_stderr(int fd)
{
	return fd != STDERR_FILENO;
}

/* Others may wait for the end of it. */
static bool waited(int fd)
{
	struct stat st;

	return fd != STDERR_FILENO && REAL(fstat)(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

/* How long, in seconds, the end of a process waits for others that have its
 * files: a command of a pipeline, not a daemon. */
#define LINGER 60

/* others_leave waits so many seconds for others that have our files; false if some still
 * do. A signal may end it: each call takes a second only. */
static bool others_leave(int seconds)
{
	int64_t left = 1;

	while (left > 0 && seconds-- > 0)
		left = rt_leave(1);
	return left <= 0;
}

/* nv_linger is called at the end of the process. What stdout holds is written
 * where it would be anyway: its descriptor may be closed here. */
void nv_linger(bool flush)
{
	if (rt_leave(0) <= 0)
		return;
	if (flush)
		fflush(*nv_standard_stream(STDOUT_FILENO));
	/* Streams may still have something to write to other files. */
	close_ours();
	close_others(waited);
	if (rt_leave(1) <= 0)
		return;
	nv_complain("process %d has ended, and waits up to %d s for others that have its open files under %s",
		    (int)getpid(), LINGER, nv_mount);
	if (!others_leave(LINGER - 1))
		nv_complain("process %d ends; others still have its open files under %s, which now fail for them",
			    (int)getpid(), nv_mount);
}

/* nv_quit is _exit, which shells end with. A local file system keeps what was
 * written, to mappings too; and who has the partition next need not find out
 * whether something is still on its way. */
void nv_quit(int status)
{
	if (nv_loaded() && nv_state != NV_INSIDE && nv_own_memory()) {
		nv_linger(false);
		nv_finish();
	} else if (!nv_loaded()) {
		nv_release_mappings();
	}
	REAL(_exit)(status);
}

/* serve_deputy is what is left of this process: it serves the files and ends
 * like the program. */
static void serve_deputy(void)
{
	const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
	siginfo_t end;
	int status = 0;

	take_signals();
	close_ours();
	close_others(but_stderr);
	/* Until it is waited for nobody else gets its number. */
	while (waitid(P_PID, (id_t)deputy, &end, WEXITED | WNOWAIT) != 0 && errno == EINTR)
		;
	for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
		REAL(signal)(passed[i], SIG_DFL);
	waitpid(deputy, &status, 0);
	while (rt_leave(-1) > 0) /* signals come in between */
		nanosleep(&pause, NULL);
	nv_finish();
	if (WIFSIGNALED(status)) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		REAL(signal)(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	_exit(WEXITSTATUS(status));
}

/* become_deputy is the beginning of the child: it dies with its parent, which
 * is who others know. */
static void become_deputy(pid_t parent, const struct sigaction *child)
{
	REAL(sigaction)(SIGCHLD, child, NULL);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() != parent)
		raise(SIGKILL);
}

/* receive gets a deputy's report; false if it has executed the program. */
static bool receive(int report, int *error)
{
	ssize_t n;

	do
		n = REAL(read)(report, error, sizeof *error);
	while (n < 0 && errno == EINTR);
	return n == sizeof *error;
}

/* nv_step_aside is called before this process executes a program. If it has to
 * serve, a child executes it instead: nv_step_aside returns in the child, with
 * where to report a failure, or here after such a failure, with -2; else -1. */
int nv_step_aside(void)
{
	struct sigaction before, plain = {.sa_handler = SIG_DFL};
	int report[2], error = 0;
	pid_t self = getpid();

	if (!needed()) {
		give_up();
		return -1;
	}
	if (pipe2(report, O_CLOEXEC) != 0)
		return -2;
	REAL(sigaction)(SIGCHLD, &plain, &before); /* nobody else is to wait for it */
	deputy = fork(); /* which shares what is open */
	if (deputy == 0) {
		become_deputy(self, &before);
		REAL(close)(report[0]);
		return report[1];
	}
	if (deputy < 0)
		error = errno;
	REAL(close)(report[1]);
	if (deputy > 0 && !receive(report[0], &error))
		serve_deputy();
	REAL(close)(report[0]);
	if (deputy > 0)
		waitpid(deputy, NULL, 0);
	REAL(sigaction)(SIGCHLD, &before, NULL);
	errno = error;
	return -2;
}

/* nv_not_executed reports that the program could not be executed. */
int nv_not_executed(int report)
{
	int error = errno;

	if (report < 0) {
		take_back();
		nv_share_all(); /* this process goes on, and serves */
		return -1;
	}
	_exit(REAL(write)(report, &error, sizeof error) == sizeof error ? 127 : 126);
}
