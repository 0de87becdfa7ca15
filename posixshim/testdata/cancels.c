/* Cancels threads that use files in argv[1]: in each cancellation point, where the call must have had no effect, and at random
 * moments. Afterwards calls must work, and no descriptor may be left open. argv[2] is the number of repetitions. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char path[4096], buf[1 << 16];
static int fd, locked;
static struct iovec iov = {buf, 8};

static long op_read(void) { return read(fd, buf, 8); }
static long op_pread(void) { return pread(fd, buf, 8, 0); }
static long op_readv(void) { return readv(fd, &iov, 1); }
static long op_preadv(void) { return preadv(fd, &iov, 1, 0); }
static long op_write(void) { return write(fd, "written", 7); }
static long op_pwrite(void) { return pwrite(fd, "written", 7, 0); }
static long op_writev(void) { return writev(fd, &iov, 1); }
static long op_pwritev(void) { return pwritev(fd, &iov, 1, 0); }
static long op_fsync(void) { return fsync(fd); }
static long op_fdatasync(void) { return fdatasync(fd); }
static long op_open(void) { return open(path, O_RDWR | O_TRUNC); }
static long op_openat(void) { return openat(AT_FDCWD, path, O_RDWR | O_TRUNC); }
static long op_creat(void) { return creat(path, 0600); }
static long op_close(void) { return close(fd); }
static long op_setlkw(void) { return fcntl(locked, F_SETLKW, &(struct flock){.l_type = F_WRLCK}); }
static long op_lockf(void) { return lockf(locked, F_LOCK, 0); }
static long op_msync(void) { return msync(buf, 0, MS_SYNC); }

static const struct {
	const char *name;
	long (*call)(void);
} ops[] = {
	{"read", op_read}, {"pread", op_pread}, {"readv", op_readv}, {"preadv", op_preadv},
	{"write", op_write}, {"pwrite", op_pwrite}, {"writev", op_writev}, {"pwritev", op_pwritev},
	{"fsync", op_fsync}, {"fdatasync", op_fdatasync}, {"open", op_open}, {"openat", op_openat},
	{"creat", op_creat}, {"close", op_close}, {"F_SETLKW", op_setlkw}, {"lockf", op_lockf}, {"msync", op_msync},
};

/* A thread has a pending cancellation when it makes the call. */

static int cleaned;

static void clean(void *arg)
{
	cleaned++;
	*(int *)arg = 1;
}

static void *pending(void *op)
{
	int handled = 0;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	pthread_cleanup_push(clean, &handled);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	((long (*)(void))op)();
	pthread_cleanup_pop(0);
	return "it returned";
}

/* Calls that are not cancellation points: the call succeeds, and the thread continues. */
static void *disabled(void *arg)
{
	long n;

	(void)arg;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	n = pwrite(fd, "disabled", 8, 0);
	return n == 8 ? "written" : "not written";
}

static void once(void)
{
	void *result;
	pthread_t t;
	struct stat st;

	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
		cleaned = 0;
		fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (write(fd, "contents", 8) != 8 || lseek(fd, 0, SEEK_SET) != 0)
			printf("contents: %s\n", strerror(errno));
		pthread_create(&t, NULL, pending, (void *)ops[i].call);
		pthread_join(t, &result);
		fstat(fd, &st);
		char now[9] = "";

		pread(fd, now, 8, 0);
		printf("%s: %s, cleaned %d, size %ld, offset %ld, %s\n", ops[i].name,
		       result == PTHREAD_CANCELED ? "cancelled" : (char *)result, cleaned, (long)st.st_size,
		       (long)lseek(fd, 0, SEEK_CUR), now);
		close(fd);
	}
	fd = open(path, O_RDWR);
	pthread_create(&t, NULL, disabled, NULL);
	pthread_join(t, &result);
	printf("disabled: %s\n", (char *)result);
	close(fd);
}

/* Threads are cancelled at any point of a loop of calls. */

static void shut(void *arg)
{
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	if (*(int *)arg >= 0)
		close(*(int *)arg);
}

static void *loop(void *arg)
{
	char name[4200];
	int mine = -1;

	snprintf(name, sizeof name, "%s.%ld", path, (long)arg);
	pthread_cleanup_push(shut, &mine);
	for (;;) {
		/* The thread cannot be cancelled between open and the assignment of the descriptor. */
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
		mine = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
		for (int i = 0; i < 5; i++) {
			if (write(mine, buf, sizeof buf) != sizeof buf || pwrite(mine, buf, 100, i) != 100)
				abort();
			if (pread(mine, name + 4100, 50, 0) != 50)
				abort();
			fsync(mine);
			open("/nonexistent", O_RDONLY);
		}
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
		close(mine);
		mine = -1;
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static int used(void)
{
	int n = 0;

	for (int i = 0; i < 500; i++)
		n += fcntl(i, F_GETFD) >= 0;
	return n;
}

static int again(int times)
{
	pthread_t t[3];
	int before = used(), cancelled = 0;

	for (int i = 0; i < times; i++) {
		for (long j = 0; j < 3; j++)
			pthread_create(&t[j], NULL, loop, (void *)j);
		usleep((useconds_t)(random() % 3000));
		for (int j = 0; j < 3; j++) {
			void *result;

			pthread_cancel(t[j]);
			pthread_join(t[j], &result);
			cancelled += result == PTHREAD_CANCELED;
		}
		fd = open(path, O_RDWR | O_CREAT, 0600);
		if (fd < 0 || write(fd, buf, sizeof buf) != sizeof buf || fsync(fd) != 0 || close(fd) != 0)
			return 0;
	}
	return cancelled == 3 * times && used() == before;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	snprintf(path, sizeof path, "%s/file", argv[1]);
	locked = open(path, O_RDWR | O_CREAT, 0600);
	once();
	printf("%s\n", again(argc > 2 ? atoi(argv[2]) : 100) ? "all cancelled" : "not so");
	return 0;
}
