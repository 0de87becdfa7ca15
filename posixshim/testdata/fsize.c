/* Tests RLIMIT_FSIZE with files in the directory argv[1]. Prints the results of the calls and the raised signals, which the test
 * compares with a run in a local directory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ulimit.h>
#include <unistd.h>

#define MOST 100000

static const char *dir;
static char path[4096], buf[3 * MOST];
static volatile int signals;

#define P(expr) print(#expr, (long)(expr))

static long print(const char *what, long value)
{
	int e = errno, n = signals;

	signals = 0;
	printf("%s = %ld%s%s%s\n", what, value, value == -1 ? " " : "", value == -1 ? strerrorname_np(e) : "",
	       n == 1 ? " SIGXFSZ" : n > 1 ? " SIGXFSZs" : "");
	fflush(stdout);
	return value;
}

static char *in(const char *name)
{
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static int opened(const char *name, int flags)
{
	return open(in(name), flags, 0600);
}

static long size(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? st.st_size : -1;
}

/* Set in the thread that makes the call: it must get the signal. */
static __thread int mine;

static void took(int signum)
{
	signals += signum == SIGXFSZ && mine ? 1 : 1000;
}

static int limit(rlim_t most)
{
	struct rlimit l = {most, RLIM_INFINITY};

	return setrlimit(RLIMIT_FSIZE, &l);
}

static void writes(int fd)
{
	struct iovec two[] = {{buf, 70000}, {buf, 70000}};

	P(write(fd, buf, MOST - 10));
	P(write(fd, buf, 20));
	P(lseek(fd, 0, SEEK_CUR));
	P(write(fd, buf, 1));
	P(write(fd, buf, 0));
	P(lseek(fd, 0, SEEK_CUR));
	P(size(fd));
	P(pwrite(fd, buf, 100, MOST - 1));
	P(pwrite(fd, buf, 100, MOST));
	P(pwrite(fd, buf, 0, MOST));
	P(pwrite(fd, buf, 100, 5 * MOST));
	P(pwritev(fd, two, 2, 0));
	P(pwritev(fd, two, 2, 50000));
	P(pwritev(fd, two, 2, MOST));
	P(lseek(fd, MOST - 6, SEEK_SET));
	P(writev(fd, two, 2));
	P(writev(fd, two, 2));
	P(size(fd));
}

static void sizes(int fd)
{
	P(ftruncate(fd, MOST));
	P(ftruncate(fd, MOST + 1));
	P(size(fd));
	P(truncate(in("f"), MOST + 1));
	P(truncate(in("f"), MOST - 5));
	P(size(fd));
	P(fallocate(fd, 0, 0, MOST));
	P(fallocate(fd, 0, 10, MOST));
	P(fallocate(fd, FALLOC_FL_KEEP_SIZE, MOST, MOST));
	P(posix_fallocate(fd, MOST, 1));
	P(size(fd));
	P(ftruncate(fd, 7));
}

/* A file that is larger than the limit can be truncated, and written below the limit. */
static void larger(int fd)
{
	limit(RLIM_INFINITY);
	P(pwrite(fd, buf, sizeof buf, 0));
	limit(MOST);
	P(pwrite(fd, buf, 10, MOST - 5));
	P(pwrite(fd, buf, 10, MOST));
	P(ftruncate(fd, 2 * MOST + 1));
	P(ftruncate(fd, 2 * MOST));
	P(ftruncate(fd, 2 * MOST + 1));
	P(fallocate(fd, 0, MOST, MOST));
	P(size(fd));
	P(ftruncate(fd, 0));
}

static void appends(void)
{
	int fd = opened("log", O_WRONLY | O_CREAT | O_APPEND);

	P(write(fd, buf, MOST - 3));
	P(write(fd, buf, 5));
	P(write(fd, buf, 5));
	P(pwrite(fd, buf, 5, 0));
	P(size(fd));
	close(fd);
}

static void streams(void)
{
	FILE *f = fopen(in("stream"), "w");

	P(fwrite(buf, 1, MOST + 10000, f) <= MOST + 10000);
	P(fflush(f));
	P(ferror(f) != 0);
	fclose(f);
	signals = 0;
	struct stat st;
	stat(in("stream"), &st);
	P(st.st_size);
}

/* Every call that can set the limit does so. */
static void setting(int fd)
{
	struct rlimit l = {1000, RLIM_INFINITY};

	P(prlimit(0, RLIMIT_FSIZE, &l, NULL));
	P(pwrite(fd, buf, 100, 990));
	l.rlim_cur = 900;
	P(prlimit(getpid(), RLIMIT_FSIZE, &l, NULL));
	P(pwrite(fd, buf, 100, 890));
	l.rlim_cur = 800;
	P(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &l, NULL));
	P(pwrite(fd, buf, 100, 790));
	l.rlim_cur = 700;
	P(syscall(SYS_setrlimit, RLIMIT_FSIZE, &l));
	P(pwrite(fd, buf, 100, 690));
	limit(RLIM_INFINITY);
	P(pwrite(fd, buf, 10, MOST));
	limit(0);
	P(pwrite(fd, buf, 10, 0));
	limit(MOST);
}

static void *in_thread(void *fd)
{
	mine = 1;
	P(pwrite(*(int *)fd, buf, 10, MOST));
	return NULL;
}

static void threads(int fd)
{
	pthread_t t;

	mine = 0;
	pthread_create(&t, NULL, in_thread, &fd);
	pthread_join(t, NULL);
	mine = 1;
}

static void ended(pid_t pid)
{
	int status;

	waitpid(pid, &status, 0);
	printf("exit %d signal %s\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
	       WIFSIGNALED(status) ? sigabbrev_np(WTERMSIG(status)) : "none");
	fflush(stdout);
}

/* A child has its own limit, although the parent serves the file. Without a handler the signal kills the child. */
static void children(int fd)
{
	pid_t pid;

	fflush(stdout);
	if ((pid = fork()) == 0) {
		P(pwrite(fd, buf, 10, MOST - 5));
		P(pwrite(fd, buf, 10, MOST));
		limit(MOST / 2);
		P(pwrite(fd, buf, MOST, 10));
		P(truncate(in("f"), MOST));
		P(ftruncate(fd, 10));
		P(ftruncate(fd, MOST));
		limit(2 * MOST);
		P(pwrite(fd, buf, 10, MOST));
		P(pwrite(fd, buf, 3 * MOST, 0));
		P(ftruncate(fd, 10));
		signal(SIGXFSZ, SIG_DFL);
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		P(pwrite(fd, buf, 10, 2 * MOST));
		_exit(0);
	}
	ended(pid);
	P(pwrite(fd, buf, 10, MOST));
	if ((pid = fork()) == 0) {
		signal(SIGXFSZ, SIG_IGN);
		P(pwrite(fd, buf, 10, MOST));
		P(write(opened("g", O_WRONLY | O_CREAT), buf, 10));
		P(ulimit(UL_SETFSIZE, 1)); /* only root can raise the limit again */
		P(pwrite(fd, buf, 100, 500));
		P(ulimit(UL_GETFSIZE));
		_exit(0);
	}
	ended(pid);
	P(size(fd));
}

/* If the library splits a large transfer, only the last part may be short. */
static void parts(int fd)
{
	size_t n = 20 << 20;
	char *large = calloc(1, n);
	pid_t pid;

	fflush(stdout);
	if ((pid = fork()) == 0) {
		limit(16 << 20);
		P(pwrite(fd, large, n, 0));
		P(pwrite(fd, large, n, 16 << 20));
		limit(10 << 20);
		P(lseek(fd, 0, SEEK_SET));
		P(write(fd, large, n));
		P(write(fd, large, n));
		_exit(0);
	}
	ended(pid);
	P(ftruncate(fd, 0));
}

/* The limit does not apply to mapped memory. */
static void maps(int fd)
{
	limit(RLIM_INFINITY);
	ftruncate(fd, MOST);
	limit(MOST);
	char *m = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	P(m != MAP_FAILED);
	memset(m, 'm', MOST);
	P(msync(m, MOST, MS_SYNC));
	P(pwrite(fd, "x", 1, MOST));
	munmap(m, MOST);
}

int main(int argc, char **argv)
{
	struct sigaction take = {.sa_handler = took};

	dir = argv[argc - 1];
	mine = 1;
	sigaction(SIGXFSZ, &take, NULL);
	int fd = opened("f", O_RDWR | O_CREAT | O_TRUNC);

	P(limit(MOST));
	writes(fd);
	sizes(fd);
	larger(fd);
	appends();
	streams();
	setting(fd);
	threads(fd);
	children(fd);
	parts(fd);
	maps(fd);
	return 0;
}
