/* Each async-signal-safe function is called for the first time in a signal handler, on files outside the mount. Other threads
 * hold the locks of the dynamic linker. So the library must not take a lock or allocate memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <termios.h>
#include <unistd.h>
#include <utime.h>

static volatile sig_atomic_t handling, allocated, locked;
static char dir[4096], a[4200], b[4200], c[4200], buf[64];

/* The following functions replace those of the C library in every library. */

extern void *__libc_malloc(size_t n);

void *malloc(size_t n)
{
	if (handling)
		allocated++;
	return __libc_malloc(n);
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
	static int (*real)(pthread_mutex_t *);

	if (handling)
		locked++;
	if (real == NULL)
		real = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
	return real(m);
}

static const char *failed[100];
static int failures;

#define EXPECT(call)                               \
	do {                                       \
		if (!(call) && failures < 100)     \
			failed[failures++] = #call; \
	} while (0)

static void data(int fd)
{
	struct iovec iov = {buf, 4};
	struct stat st;
	struct termios t;
	struct timespec now[2] = {{1, 0}, {1, 0}};

	EXPECT(write(fd, "abcd", 4) == 4);
	EXPECT(pwrite(fd, "abcd", 4, 4) == 4);
	EXPECT(writev(fd, &iov, 1) == 4);
	EXPECT(lseek(fd, 0, SEEK_SET) == 0);
	EXPECT(read(fd, buf, 4) == 4);
	EXPECT(pread(fd, buf, 4, 0) == 4);
	EXPECT(readv(fd, &iov, 1) == 4);
	EXPECT(fsync(fd) == 0);
	EXPECT(fdatasync(fd) == 0);
	EXPECT(ftruncate(fd, 2) == 0);
	EXPECT(fstat(fd, &st) == 0 && st.st_size == 2);
	EXPECT(fchmod(fd, 0640) == 0);
	EXPECT(fchown(fd, getuid(), getgid()) == 0);
	EXPECT(futimens(fd, now) == 0);
	EXPECT(fcntl(fd, F_GETFL) >= 0);
	EXPECT(isatty(fd) == 0 && errno == ENOTTY);
	EXPECT(tcgetattr(fd, &t) == -1);
	int copy = dup(fd);

	EXPECT(copy >= 0);
	EXPECT(dup2(fd, copy) == copy);
	EXPECT(close(copy) == 0);
}

static void names(int at)
{
	struct stat st;
	struct timespec times[2] = {{1, 0}, {1, 0}};
	struct timeval tv[2] = {{1, 0}, {1, 0}};
	struct utimbuf ut = {1, 1};

	EXPECT(access(a, F_OK) == 0);
	EXPECT(faccessat(at, "a", F_OK, 0) == 0);
	EXPECT(stat(a, &st) == 0);
	EXPECT(lstat(a, &st) == 0);
	EXPECT(fstatat(at, "a", &st, 0) == 0);
	EXPECT(chmod(a, 0600) == 0);
	EXPECT(fchmodat(at, "a", 0600, 0) == 0);
	EXPECT(chown(a, getuid(), getgid()) == 0);
	EXPECT(lchown(a, getuid(), getgid()) == 0);
	EXPECT(fchownat(at, "a", getuid(), getgid(), 0) == 0);
	EXPECT(utime(a, &ut) == 0);
	EXPECT(utimes(a, tv) == 0);
	EXPECT(utimensat(at, "a", times, 0) == 0);
	EXPECT(link(a, b) == 0);
	EXPECT(rename(b, c) == 0);
	EXPECT(renameat(at, "c", at, "b") == 0);
	EXPECT(unlink(b) == 0);
	EXPECT(linkat(at, "a", at, "b", 0) == 0);
	EXPECT(unlinkat(at, "b", 0) == 0);
	EXPECT(symlink("a", b) == 0);
	EXPECT(readlink(b, buf, sizeof buf) == 1);
	EXPECT(readlinkat(at, "b", buf, sizeof buf) == 1);
	EXPECT(symlinkat("a", at, "c") == 0);
	EXPECT(unlink(b) == 0 && unlink(c) == 0);
	EXPECT(mkdir(b, 0700) == 0);
	EXPECT(rmdir(b) == 0);
	EXPECT(mkdirat(at, "b", 0700) == 0);
	EXPECT(chdir(b) == 0);
	EXPECT(fchdir(at) == 0);
	EXPECT(unlinkat(at, "b", AT_REMOVEDIR) == 0);
	EXPECT(mkfifo(b, 0600) == 0 && unlink(b) == 0);
	EXPECT(mkfifoat(at, "b", 0600) == 0 && unlink(b) == 0);
	EXPECT(mknod(b, S_IFREG | 0600, 0) == 0 && unlink(b) == 0);
	EXPECT(mknodat(at, "b", S_IFREG | 0600, 0) == 0 && unlink(b) == 0);
}

static void handler(int signum)
{
	int saved = errno;
	struct timeval none = {0, 0};
	struct timespec nothing = {0, 0};
	struct sigaction act;

	(void)signum;
	handling = 1;
	int at = open(dir, O_RDONLY | O_DIRECTORY), fd = creat(a, 0600);

	EXPECT(at >= 0 && fd >= 0);
	EXPECT(close(fd) == 0);
	fd = openat(at, "a", O_RDWR);
	data(fd);
	names(at);
	EXPECT(umask(022) == 022);
	EXPECT(poll(NULL, 0, 0) == 0);
	EXPECT(ppoll(NULL, 0, &nothing, NULL) == 0);
	EXPECT(select(0, NULL, NULL, NULL, &none) == 0);
	EXPECT(pselect(0, NULL, NULL, NULL, &nothing, NULL) == 0);
	EXPECT(sigaction(SIGUSR2, NULL, &act) == 0);
	EXPECT(signal(SIGUSR2, SIG_IGN) != SIG_ERR);
	EXPECT(close(fd) == 0 && close(at) == 0);
	handling = 0;
	errno = saved;
}

/* Threads hold the locks of the dynamic linker until the main thread lets them continue. */

static sem_t held, over;

static int inside(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)info;
	(void)size;
	(void)arg;
	sem_post(&held);
	while (sem_wait(&over) != 0)
		;
	return 1;
}

static void *iterates(void *arg)
{
	dl_iterate_phdr(inside, arg);
	return NULL;
}

/* dlopen of a pipe blocks in read while it holds the lock of the dynamic linker. */
static void *opens(void *pipe)
{
	dlopen(pipe, RTLD_NOW);
	return NULL;
}

/* runtime reports whether the Go runtime has been loaded. */
static int runtime(void)
{
	char line[4096];
	int found = 0;
	FILE *f = fopen("/proc/self/maps", "r");

	while (fgets(line, sizeof line, f) != NULL)
		found = found || strstr(line, "libnvmecr-") != NULL;
	fclose(f);
	return found;
}

int main(int argc, char **argv)
{
	pthread_t threads[2];
	char pipe[4200];
	int end;

	if (argc != 2)
		return 2;
	snprintf(dir, sizeof dir, "%s", argv[1]);
	snprintf(a, sizeof a, "%s/a", dir);
	snprintf(b, sizeof b, "%s/b", dir);
	snprintf(c, sizeof c, "%s/c", dir);
	umask(022);
	sem_init(&held, 0, 0);
	sem_init(&over, 0, 0);
	struct sigaction act = {.sa_handler = handler};

	sigaction(SIGUSR1, &act, NULL);
	snprintf(pipe, sizeof pipe, "%s/pipe", dir);
	mkfifo(pipe, 0600);
	pthread_create(&threads[0], NULL, iterates, NULL);
	while (sem_wait(&held) != 0)
		;
	pthread_create(&threads[1], NULL, opens, pipe);
	while ((end = open(pipe, O_WRONLY | O_NONBLOCK)) < 0)
		usleep(1000);
	alarm(200); /* ends the process if it waits for a lock */
	raise(SIGUSR1);
	alarm(0);
	sem_post(&over);
	close(end);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	unlink(pipe);
	unlink(a);
	for (int i = 0; i < failures; i++)
		printf("failed: %s\n", failed[i]);
	printf("%d allocations, %d locks, runtime %s\n", (int)allocated, (int)locked, runtime() ? "loaded" : "not loaded");
	return 0;
}
