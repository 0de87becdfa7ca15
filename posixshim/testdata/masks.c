/* Waits for signals that all its threads block, after writing under argv[1]. No thread of the runtime may take a signal, no
 * thread may get a signal that it blocks, and the masks must not change. Prints "ok". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(c)                                                                   \
	do                                                                         \
		if (!(c)) {                                                        \
			printf("line %d: %s (%s)\n", __LINE__, #c, strerror(errno)); \
			exit(1);                                                   \
		}                                                                  \
	while (0)

static const char *dir;
static volatile sig_atomic_t children, strangers;
static pthread_t self;

static void on_child(int signum)
{
	(void)signum;
	children++;
	if (!pthread_equal(pthread_self(), self))
		strangers++;
}

static void on_fault(int signum, siginfo_t *info, void *context)
{
	(void)context;
	children = info->si_value.sival_int + signum;
}

/* touch uses the mount in the calling thread. */
static void touch(const char *name)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	CHECK(fd >= 0);
	CHECK(write(fd, name, 1) == 1);
	CHECK(fsync(fd) == 0);
	CHECK(close(fd) == 0);
}

static pid_t child(void)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(7);
	CHECK(pid > 0);
	return pid;
}

static void reap(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static int same(const sigset_t *a, const sigset_t *b)
{
	for (int s = 1; s < NSIG; s++)
		if (sigismember(a, s) != sigismember(b, s))
			return 0;
	return 1;
}

/* A call must not change the mask of its thread. */
static void *thread(void *blocked)
{
	sigset_t before, after;

	pthread_sigmask(SIG_SETMASK, blocked, NULL);
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	*(sigset_t *)blocked = before; /* without signals that cannot be blocked */
	touch("thread");
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	CHECK(same(&before, &after));
	return NULL;
}

static void threads(int how)
{
	sigset_t blocked;
	pthread_t t;

	sigfillset(&blocked);
	for (const int *s = (const int[]){SIGSEGV, SIGBUS, SIGFPE, 0}; *s != 0; s++)
		sigdelset(&blocked, *s);
	if (how == 0)
		sigemptyset(&blocked);
	CHECK(pthread_create(&t, NULL, thread, &blocked) == 0);
	CHECK(pthread_join(t, NULL) == 0);
}

/* A signal whose default action ends the process stays pending until the program waits for it, even if the Go runtime handles
 * that signal. */
static void deadly(void)
{
	const struct timespec patience = {.tv_sec = 200};
	const int signals[] = {SIGRTMIN, SIGSTKFLT, SIGILL, SIGTRAP, SIGSYS, SIGPROF, SIGPIPE, SIGURG, SIGABRT};
	sigset_t set, before;

	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
		sigemptyset(&set);
		sigaddset(&set, signals[i]);
		CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0);
		for (int k = 0; k < 20; k++) {
			CHECK(kill(getpid(), signals[i]) == 0);
			usleep(100);
			CHECK(sigtimedwait(&set, NULL, &patience) == signals[i]);
		}
		CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	}
}

int main(int argc, char **argv)
{
	sigset_t chld, none, before, after;
	siginfo_t info;
	struct signalfd_siginfo from;
	struct sigaction act = {.sa_handler = on_child}, fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, was;
	struct timespec patience = {.tv_sec = 200};
	int status;

	if (argc != 2)
		return 2;
	dir = argv[1];
	self = pthread_self();
	sigemptyset(&none);
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigaddset(&chld, SIGPROF);
	CHECK(pthread_sigmask(SIG_BLOCK, &chld, NULL) == 0);
	CHECK(pthread_sigmask(SIG_SETMASK, NULL, &before) == 0);
	/* A signal that arrives before the wait stays pending. */
	pid_t early = child();

	CHECK(waitid(P_PID, (id_t)early, &info, WEXITED | WNOWAIT) == 0);
	touch("main");
	CHECK(pthread_sigmask(SIG_SETMASK, NULL, &after) == 0);
	CHECK(same(&before, &after));
	threads(1);
	CHECK(sigtimedwait(&chld, &info, &patience) == SIGCHLD);
	CHECK(info.si_pid == early);
	reap(early);
	threads(0);
	deadly();

	/* Without a handler, a thread that does not block the signal would discard it. */
	for (int i = 0; i < 50; i++) {
		pid_t pid = child();

		CHECK(sigtimedwait(&chld, &info, &patience) == SIGCHLD);
		CHECK(info.si_pid == pid && info.si_code == CLD_EXITED && info.si_status == 7);
		reap(pid);
	}
	int fd = signalfd(-1, &chld, SFD_CLOEXEC);

	CHECK(fd >= 0);
	for (int i = 0; i < 50; i++) {
		pid_t pid = child();
		struct pollfd p = {.fd = fd, .events = POLLIN};

		CHECK(poll(&p, 1, 200 * 1000) == 1);
		CHECK(read(fd, &from, sizeof from) == sizeof from);
		CHECK((pid_t)from.ssi_pid == pid && from.ssi_code == CLD_EXITED);
		reap(pid);
	}
	close(fd);

	/* With a handler, which runs while the signal is not blocked. */
	CHECK(sigaction(SIGCHLD, &act, NULL) == 0);
	for (int i = 0; i < 50; i++) {
		pid_t pid = child();

		CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0);
		CHECK(children == i);
		CHECK(ppoll(NULL, 0, &patience, &none) == -1 && errno == EINTR);
		CHECK(children == i + 1);
		reap(pid);
		touch("main");
	}
	CHECK(strangers == 0);

	/* The library installs no handler for SIGPROF, so the application gets the signal. */
	CHECK(pthread_sigmask(SIG_UNBLOCK, &chld, NULL) == 0);
	CHECK(sigaction(SIGPROF, &fault, &was) == 0);
	CHECK(was.sa_handler == SIG_DFL);
	children = 0;
	CHECK(sigqueue(getpid(), SIGPROF, (union sigval){.sival_int = 5}) == 0);
	CHECK(children == 5 + SIGPROF);
	threads(1);
	CHECK(children == 5 + SIGPROF);
	CHECK(signal(SIGPROF, SIG_IGN) != SIG_ERR);
	CHECK(raise(SIGPROF) == 0);
	CHECK(signal(SIGPROF, SIG_DFL) == SIG_IGN);
	pid_t pid = fork();

	if (pid == 0) {
		touch("child");
		raise(SIGPROF);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF);
	printf("ok\n");
	return 0;
}
