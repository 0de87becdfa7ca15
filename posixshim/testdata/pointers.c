/* Calls on files under argv[1] and elsewhere with pointers to memory that is not
 * there, not writable, or ends too early. Prints results and errno; the same on
 * every file system, also in a child and in a handler of the fault's signal. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char *bad[5];
static const char *const which[] = {"none", "read-only", "ending", "far", "nobody's"};

#define TRY(call)                                                      \
	do {                                                           \
		errno = 0;                                             \
		long r_ = (long)(call);                                \
		printf("%s = %ld %s\n", #call, r_ < 0 ? -1l : r_ > 0, strerrorname_np(errno) ? strerrorname_np(errno) : "?"); \
	} while (0)

/* Names that cannot be read: all but the one that is only not writable. */
static void names(void *p)
{
	struct stat st;

	TRY(open(p, O_RDONLY));
	TRY(openat(AT_FDCWD, p, O_RDONLY));
	TRY(stat(p, &st));
	TRY(fstatat(AT_FDCWD, p, &st, 0));
	TRY(access(p, F_OK));
	TRY(chmod(p, 0));
	TRY(chown(p, 0, 0));
	TRY(unlink(p));
	TRY(mkdir(p, 0700));
	TRY(rmdir(p));
	TRY(chdir(p));
	TRY(truncate(p, 0));
	TRY(rename(p, "file"));
	TRY(rename("file", p));
	TRY(link("file", p));
	TRY(symlink(p, "made"));
	TRY(symlink("file", p));
	TRY(readlink(p, (char *)&st, sizeof st));
	TRY(execve(p, NULL, NULL));
	TRY(utimensat(AT_FDCWD, p, NULL, 0));
	TRY(fopen(p, "r") != NULL);
}

static void filled(void *p)
{
	int fd = open("file", O_RDWR), dir = open(".", O_RDONLY), null = open("/dev/null", O_RDWR);

	TRY(stat("file", p));
	TRY(lstat("link", p));
	TRY(fstat(fd, p));
	TRY(fstatat(AT_FDCWD, "file", p, 0));
	TRY(statx(AT_FDCWD, "file", 0, STATX_BASIC_STATS, p));
	TRY(statfs("file", p));
	TRY(fstatfs(fd, p));
	TRY(readlink("link", p, 4));
	TRY(syscall(SYS_getcwd, p, 4096));
	TRY(syscall(SYS_getdents64, dir, p, 4096));
	TRY(read(fd, p, 3));
	TRY(pread(fd, p, 3, 0));
	TRY(readv(fd, &(struct iovec){p, 3}, 1));
	TRY(fcntl(fd, F_GETLK, p));
	TRY(ioctl(fd, FIONREAD, p));
	TRY(sendfile(null, fd, p, 1));
	TRY(copy_file_range(fd, p, fd, &(off64_t){100}, 1, 0));
	TRY(copy_file_range(fd, &(off64_t){0}, fd, p, 1, 0));
	close(fd);
	close(dir);
	close(null);
}

static void given(void *p)
{
	int fd = open("file", O_RDWR);

	TRY(write(fd, p, 3));
	TRY(pwrite(fd, p, 3, 0));
	TRY(writev(fd, p, 1));
	TRY(writev(fd, &(struct iovec){p, 3}, 1));
	TRY(preadv(fd, p, 2, 0));
	TRY(pwritev(fd, p, 2, 0));
	TRY(futimens(fd, p));
	TRY(utimensat(AT_FDCWD, "file", p, 0));
	TRY(fcntl(fd, F_SETLK, p));
	TRY(fcntl(fd, F_OFD_SETLK, p));
	TRY(poll(p, 1, 0));
	TRY(select(8, p, NULL, NULL, &(struct timeval){0}));
	TRY(execve("/bin/true", p, NULL));
	close(fd);
}

static void all(void)
{
	for (int i = 0; i < 5; i++) {
		printf("-- %s\n", which[i]);
		if (i != 1)
			names(bad[i]);
		if (i != 2)
			filled(bad[i]);
		if (i != 1)
			given(bad[i]);
	}
	fflush(stdout);
}

static void handler(int signum)
{
	struct stat st;

	(void)signum;
	TRY(stat(bad[0], &st));
	TRY(fstat(0, (void *)bad[0]));
}

int main(int argc, char **argv)
{
	int status;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 2 || chdir(argv[1]) != 0)
		return 2;
	bad[0] = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bad[1] = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bad[2] = (char *)mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4095;
	mprotect(bad[2] + 1, 4096, PROT_NONE);
	*bad[2] = 'x';
	bad[3] = (char *)0xdeadc0de;
	bad[4] = (char *)0x8badc0debadc0deul;
	/* Before the first file, too. */
	struct stat st;

	TRY(stat(bad[3], &st));
	TRY(stat("/etc", (void *)bad[0]));
	close(open("file", O_RDWR | O_CREAT, 0600));
	truncate("file", 1000);
	symlink("file", "link");
	all();
	signal(SIGSEGV, SIG_IGN);
	all();
	signal(SIGUSR1, handler);
	signal(SIGSEGV, handler);
	raise(SIGUSR1);
	all();
	if (fork() == 0) {
		bad[2] = bad[0]; /* what can be read of it need not be written */
		all();
		_exit(3);
	}
	wait(&status);
	printf("child %d\n", WEXITSTATUS(status));
	return 0;
}
