/* Takes locks on files in the directory argv[1], by several open files of one process, and by a process and its child. Prints the
 * results of the calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[4096];

/* In the child the process ID of the parent, in the parent that of the child. */
static pid_t relative = -2;

#define P(expr) print(#expr, (long)(expr))

static long print(const char *what, long value)
{
	int e = errno;

	printf("%s = %ld%s%s\n", what, value, value == -1 ? " " : "", value == -1 ? strerrorname_np(e) : "");
	return value;
}

static int lock(int fd, int cmd, short type, short whence, off_t start, off_t n)
{
	struct flock l = {.l_type = type, .l_whence = whence, .l_start = start, .l_len = n};

	return fcntl(fd, cmd, &l);
}

/* who prints the lock that conflicts with a request. */
static void who(int fd, int cmd, short type, off_t start, off_t n)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = n};
	int r = fcntl(fd, cmd, &l);

	printf("who %ld+%ld: %d type %d whence %d %ld+%ld pid %d\n", (long)start, (long)n, r, l.l_type, l.l_whence,
	       (long)l.l_start, (long)l.l_len, l.l_pid == getpid() ? 1 : l.l_pid == relative ? 2 : l.l_pid);
}

static void *closer(void *fd)
{
	usleep(100000);
	close(*(int *)fd);
	return NULL;
}

static void quiet(int signum)
{
	(void)signum;
}

/* in_child takes locks that do not conflict with the parent's, and notifies the parent. It ends after the parent has tried to
 * take its own locks. */
static void in_child(int fd, int tell, int wait_for)
{
	char c = 0;

	relative = getppid();
	who(fd, F_GETLK, F_WRLCK, 0, 0);
	P(lock(fd, F_SETLK, F_WRLCK, SEEK_SET, 2, 1));
	P(lock(fd, F_SETLK, F_WRLCK, SEEK_SET, 4, 4));
	P(lock(fd, F_SETLK, F_WRLCK, SEEK_SET, 5, 3));
	P(close(dup(fd))); /* closing any descriptor releases the process's record locks */
	P(lock(fd, F_SETLK, F_RDLCK, SEEK_SET, 6, 3));
	P(flock(fd, LOCK_EX | LOCK_NB)); /* a lock of the open file, which the parent shares */
	fflush(stdout);
	if (write(tell, &c, 1) == 1 && read(wait_for, &c, 1) == 0)
		_exit(0);
	_exit(1);
}

static void children(void)
{
	int fd = open(path, O_RDWR), other = open(path, O_RDWR), to[2], from[2], status;
	char c;

	P(lock(fd, F_SETLK, F_WRLCK, SEEK_SET, 0, 5));
	if (pipe(to) != 0 || pipe(from) != 0)
		return;
	fflush(stdout);
	relative = fork();
	if (relative == 0) {
		close(to[1]);
		in_child(fd, from[1], to[0]);
	}
	P(read(from[0], &c, 1));
	who(fd, F_GETLK, F_WRLCK, 0, 0);
	who(fd, F_OFD_GETLK, F_WRLCK, 0, 5);
	P(lock(fd, F_SETLK, F_WRLCK, SEEK_SET, 5, 1));
	P(lock(fd, F_SETLK, F_WRLCK, SEEK_SET, 7, 1));
	P(lock(fd, F_SETLK, F_RDLCK, SEEK_SET, 7, 1));
	P(flock(fd, LOCK_EX | LOCK_NB));
	P(flock(other, LOCK_SH | LOCK_NB));
	close(to[1]);
	P(waitpid(relative, &status, 0) == relative && status == 0);
	P(lock(fd, F_SETLKW, F_WRLCK, SEEK_SET, 0, 0)); /* the record locks of the child have ended with it */
	P(flock(other, LOCK_SH | LOCK_NB)); /* the lock of the open file has not ended */
	P(close(fd));
	P(flock(other, LOCK_SH | LOCK_NB));
}

int main(int argc, char **argv)
{
	pthread_t t;

	if (argc != 2)
		return 2;
	snprintf(path, sizeof path, "%s/locked", argv[1]);
	int a = open(path, O_RDWR | O_CREAT, 0600), b = open(path, O_RDWR), r = open(path, O_RDONLY), w = open(path, O_WRONLY);

	P(write(a, "0123456789", 10));
	/* Record locks belong to the process. */
	P(lock(a, F_SETLK, F_WRLCK, SEEK_SET, 0, 5));
	P(lock(b, F_SETLK, F_WRLCK, SEEK_SET, 0, 5));
	who(b, F_GETLK, F_WRLCK, 0, 0);
	who(b, F_OFD_GETLK, F_RDLCK, 0, 0);
	P(lock(b, F_OFD_SETLK, F_RDLCK, SEEK_SET, 4, 1));
	P(lock(b, F_OFD_SETLK, F_RDLCK, SEEK_SET, 5, 1));
	P(lock(a, F_SETLK, F_UNLCK, SEEK_SET, 2, 1));
	who(b, F_OFD_GETLK, F_WRLCK, 2, 0);
	who(b, F_OFD_GETLK, F_WRLCK, 2, 1);
	P(lock(a, F_SETLK, F_RDLCK, SEEK_END, -2, 0));
	who(b, F_OFD_GETLK, F_WRLCK, 7, 0);
	P(lock(a, F_SETLK, F_RDLCK, SEEK_CUR, 0, -3));
	who(b, F_OFD_GETLK, F_WRLCK, 6, 2);
	/* Closing any descriptor of the file releases the record locks. */
	P(close(open(path, O_RDONLY)));
	who(b, F_OFD_GETLK, F_WRLCK, 0, 0);
	/* Locks of open files. */
	P(lock(a, F_OFD_SETLK, F_WRLCK, SEEK_SET, 0, 0));
	P(lock(b, F_OFD_SETLK, F_UNLCK, SEEK_SET, 0, 0));
	P(lock(b, F_OFD_SETLK, F_RDLCK, SEEK_SET, 0, 1));
	P(lock(b, F_SETLK, F_RDLCK, SEEK_SET, 0, 1));
	who(b, F_GETLK, F_RDLCK, 3, 1);
	int d = dup(a);

	P(lock(d, F_OFD_SETLK, F_WRLCK, SEEK_SET, 0, 0));
	P(close(a));
	P(lock(b, F_OFD_SETLK, F_RDLCK, SEEK_SET, 0, 1));
	pthread_create(&t, NULL, closer, &d);
	P(lock(b, F_OFD_SETLKW, F_RDLCK, SEEK_SET, 0, 1));
	pthread_join(t, NULL);
	/* Invalid requests. */
	P(lock(r, F_SETLK, F_WRLCK, SEEK_SET, 0, 1));
	P(lock(w, F_SETLK, F_RDLCK, SEEK_SET, 0, 1));
	P(lock(b, F_SETLK, 17, SEEK_SET, 0, 1));
	P(lock(b, F_SETLK, F_RDLCK, 9, 0, 1));
	P(lock(b, F_SETLK, F_RDLCK, SEEK_SET, -1, 1));
	P(lock(b, F_SETLK, F_RDLCK, SEEK_SET, 1, -2));
	/* flock */
	a = open(path, O_RDWR);
	P(flock(a, LOCK_SH));
	P(flock(b, LOCK_SH | LOCK_NB));
	P(flock(b, LOCK_EX | LOCK_NB));
	P(flock(a, LOCK_UN));
	P(flock(b, LOCK_EX | LOCK_NB));
	P(flock(a, LOCK_SH | LOCK_NB));
	P(flock(a, 77));
	struct sigaction act = {.sa_handler = quiet};
	struct itimerval soon = {.it_value = {.tv_usec = 50000}}, off = {0};
	struct itimerval often = {.it_value = soon.it_value, .it_interval = soon.it_value};

	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &often, NULL); /* repeated, since the first signal may arrive before the wait begins */
	P(flock(a, LOCK_EX));
	setitimer(ITIMER_REAL, &off, NULL);
	act.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &soon, NULL);
	pthread_create(&t, NULL, closer, &b);
	P(flock(a, LOCK_SH));
	pthread_join(t, NULL);
	b = open(path, O_RDWR);
	P(flock(b, LOCK_SH));
	P(close(b));
	P(flock(a, LOCK_EX));
	/* lockf */
	P(lseek(a, 5, SEEK_SET));
	P(lockf(a, F_LOCK, 3));
	P(lockf(a, F_TEST, 0));
	who(w, F_OFD_GETLK, F_WRLCK, 0, 0);
	P(lockf(a, F_ULOCK, 0));
	who(w, F_OFD_GETLK, F_WRLCK, 0, 0);
	P(lockf(r, F_TLOCK, 0));
	P(lockf(a, 99, 0));
	P(close(a));
	children();
	return 0;
}
