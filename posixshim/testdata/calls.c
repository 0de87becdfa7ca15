/* Makes file calls in the directory argv[1] and prints their results. The test compares a run under the mount with one in a local
 * directory. */
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir;

/* P prints an expression, its value and, if the value is -1, errno. */
#define P(expr) print(#expr, (long)(expr))

static long print(const char *what, long value)
{
	int e = errno;

	printf("%s = %ld%s%s\n", what, value, value == -1 ? " " : "", value == -1 ? strerrorname_np(e) : "");
	return value;
}

/* in returns the path of a name below the directory, in one of four buffers. */
static char *in(const char *name)
{
	static char buf[4][4096];
	static int next;
	char *p = buf[next++ % 4];

	snprintf(p, sizeof buf[0], "%s/%s", dir, name);
	return p;
}

static void basics(void)
{
	char buf[64] = "";
	int fd = open(in("f"), O_RDWR | O_CREAT | O_EXCL, 0644);

	P(fd > 2);
	P(open(in("f"), O_RDWR | O_CREAT | O_EXCL, 0644));
	P(write(fd, "hello, world", 12));
	P(lseek(fd, 0, SEEK_CUR));
	P(lseek(fd, -5, SEEK_END));
	P(read(fd, buf, sizeof buf));
	printf("%s\n", buf);
	P(read(fd, buf, sizeof buf));
	P(pread(fd, buf, 5, 0));
	printf("%.5s\n", buf);
	P(pwrite(fd, "J", 1, 0));
	P(lseek(fd, -1, SEEK_SET));
	P(lseek(fd, 0, 99));
	P(pread(fd, buf, 5, -1));
	P(pread(fd, buf, 5, 1 << 20));
	P(ftruncate(fd, 100));
	P(pread(fd, buf, 5, 50));
	P(buf[0]);
	P(ftruncate(fd, -1));
	P(fsync(fd));
	P(fdatasync(fd));
	P(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
	P(fcntl(fd, F_SETFL, O_APPEND));
	P(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
	P(write(fd, "end", 3));
	P(lseek(fd, 0, SEEK_CUR));
	P(fcntl(fd, F_GETFD));
	P(fcntl(fd, F_SETFD, FD_CLOEXEC));
	P(fcntl(fd, F_GETFD));
	P(isatty(fd));
	P(flock(fd, LOCK_EX));
	P(close(fd));
	P(close(fd));
	P(write(fd, "x", 1));
	fd = open(in("f"), O_RDONLY);
	P(write(fd, "x", 1));
	P(ftruncate(fd, 1));
	P(close(fd));
	fd = open(in("f"), O_WRONLY);
	P(read(fd, buf, 1));
	P(close(fd));
	P(open(in("nope"), O_RDONLY));
	P(open(in("nope/f"), O_RDWR | O_CREAT, 0644));
	P(open(in("f/g"), O_RDONLY));
	P(open(dir, O_WRONLY));
	P(open(in("f"), O_RDONLY | O_DIRECTORY));
	P(truncate(in("f"), 3));
	P(access(in("f"), R_OK | W_OK));
	P(access(in("nope"), F_OK));
}

static void duplicates(void)
{
	char buf[8];
	int fd = open(in("dup"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	int d = dup(fd), e = fcntl(fd, F_DUPFD, 100), f = dup2(fd, 77), g = dup3(fd, 78, O_CLOEXEC);

	P(d > fd);
	P(e >= 100);
	P(f);
	P(g);
	P(write(fd, "abc", 3));
	P(write(d, "def", 3));
	P(lseek(e, 0, SEEK_CUR));
	P(close(fd));
	P(close(d));
	P(pread(f, buf, 6, 0));
	P(fcntl(g, F_GETFD));
	P(dup2(f, f));
	P(dup3(f, f, 0));
	P(close(e));
	P(dup2(open("/dev/null", O_RDONLY), 77));
	P(read(77, buf, 1));
	P(pread(78, buf, 6, 0));
	P(close_range(77, 78, 0));
	P(pread(78, buf, 6, 0));
	fd = open(in("dup"), O_WRONLY);
	char name[32];

	snprintf(name, sizeof name, "/dev/fd/%d", fd);
	d = open(name, O_RDONLY);
	P(read(d, buf, 6));
	P(write(d, "x", 1));
	snprintf(name, sizeof name, "/proc/self/fd/%d", d);
	P(truncate(name, 2));
	P(read(d, buf, 1));
	P(access(name, R_OK));
	P(lseek(fd, 0, SEEK_END));
	P(close(d) | close(fd));
	P(access("/dev/fd/0", F_OK));
	P(access("/dev/fd/12345", F_OK));
	P(dup(-1));
	P(dup2(-1, 5));
}

static void vectors(void)
{
	char a[4] = "", b[16] = "";
	volatile int bad = -1;
	struct iovec out[] = {{"one", 3}, {"", 0}, {"two", 3}}, in2[] = {{a, 2}, {b, 10}};
	int fd = open(in("vec"), O_RDWR | O_CREAT | O_TRUNC, 0600);

	P(writev(fd, out, 3));
	P(pwritev(fd, out, 3, 6));
	P(preadv(fd, in2, 2, 1));
	printf("%.2s %s\n", a, b);
	P(lseek(fd, 0, SEEK_SET));
	P(readv(fd, in2, 2));
	printf("%.2s %s\n", a, b);
	P(pwritev2(fd, out, 1, -1, 0));
	P(preadv2(fd, in2, 2, 0, 0));
	P(writev(fd, out, bad));
	P(preadv(fd, in2, 2, -3));
	P(close(fd));
}

static void names(void)
{
	char buf[4096];
	struct stat st;

	P(mkdir(in("d"), 0755));
	P(mkdir(in("d"), 0755));
	P(mkdir(in("d/e"), 0700));
	P(rmdir(in("d")));
	P(rename(in("d/e"), in("d/f")));
	P(rename(in("d"), in("d/f/x")));
	P(symlink("d/f", in("link")));
	P(readlink(in("link"), buf, sizeof buf));
	P(readlink(in("f"), buf, sizeof buf));
	P(lstat(in("link"), &st));
	P(S_ISLNK(st.st_mode));
	P(st.st_size);
	P(stat(in("link"), &st));
	P(S_ISDIR(st.st_mode));
	P(link(in("f"), in("d/hard")));
	P(stat(in("f"), &st));
	P(st.st_nlink);
	P(unlink(in("d/hard")));
	P(unlink(in("d")));
	P(remove(in("d/f")));
	P(remove(in("link")));
	P(symlink("loop", in("loop")));
	P(stat(in("loop"), &st));
	P(open(in("loop"), O_RDONLY));
	P(open(in("loop"), O_RDONLY | O_NOFOLLOW));
	P(unlink(in("loop")));
	P(rename(in("nope"), in("x")));
	P(rename(in("f"), "/tmp/elsewhere/nowhere") == -1);
	memset(buf, 'n', 300);
	buf[300] = 0;
	P(mkdir(in(buf), 0700));
	P(realpath(in("d/../f"), buf) != NULL);
	P(strcmp(buf, in("f")));
	P(realpath(in("nope"), NULL) == NULL);
	P(mkfifo(in("fifo"), 0600) == -1 || unlink(in("fifo")) == 0);
	P(mknod(in("node"), S_IFREG | 0600, 0));
	P(unlink(in("node")));
	P(renameat2(AT_FDCWD, in("f"), AT_FDCWD, in("d"), RENAME_NOREPLACE));
	P(symlink("/etc/hostname", in("out")));
	P(open(in("out"), O_RDONLY) > 2);
	P(stat(in("out"), &st));
	P(unlink(in("out")));
}

static void attributes(void)
{
	struct stat st;
	struct statx stx;
	struct statvfs vfs;
	struct statfs fs;
	struct timespec ts[2] = {{1000, 1}, {2000, 2}}, omit[2] = {{0, UTIME_OMIT}, {3000, 3}};
	int fd = open(in("attr"), O_RDWR | O_CREAT, 0666);
	mode_t old = umask(027);

	P(stat(in("attr"), &st));
	printf("%o\n", st.st_mode);
	P(close(open(in("masked"), O_RDWR | O_CREAT, 0666)));
	P(stat(in("masked"), &st));
	printf("%o\n", st.st_mode);
	umask(old);
	P(chmod(in("attr"), 0640));
	P(fchmod(fd, 04751));
	P(fstat(fd, &st));
	printf("%o\n", st.st_mode);
	P(fchmodat(AT_FDCWD, in("attr"), 0600, 0));
	P(utimensat(AT_FDCWD, in("attr"), ts, 0));
	P(fstat(fd, &st));
	printf("%ld.%ld %ld.%ld\n", st.st_atim.tv_sec, st.st_atim.tv_nsec, st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
	P(futimens(fd, omit));
	P(statx(AT_FDCWD, in("attr"), 0, STATX_ALL, &stx));
	printf("%lld %lld %u\n", (long long)stx.stx_atime.tv_sec, (long long)stx.stx_mtime.tv_sec, stx.stx_nlink);
	P(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &stx));
	P(fstatat(fd, "", &st, AT_EMPTY_PATH));
	P(fstatat(fd, "", &st, 0));
	P(chown(in("attr"), -1, -1));
	P(fchown(fd, getuid(), getgid()));
	P(statvfs(dir, &vfs));
	P(vfs.f_namemax);
	P(fstatvfs(fd, &vfs));
	P(statfs(in("nope"), &fs));
	P(statfs(dir, &fs));
	P(fs.f_bsize > 0 && fs.f_blocks >= fs.f_bfree);
	P(pathconf(dir, _PC_NAME_MAX));
	P(close(fd));
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static void directories(void)
{
	char name[32];
	struct dirent **list;
	int n = 0;

	P(mkdir(in("many"), 0755));
	for (int i = 0; i < 2500; i++) {
		snprintf(name, sizeof name, "many/%d", i);
		close(open(in(name), O_CREAT | O_WRONLY, 0600));
	}
	DIR *d = opendir(in("many"));

	for (struct dirent *e; (e = readdir(d)) != NULL;)
		n++;
	P(n);
	rewinddir(d);
	for (int i = 0; i < 10; i++)
		readdir(d);
	long at = telldir(d);
	char *next = strdup(readdir(d)->d_name);

	for (int i = 0; i < 100; i++)
		readdir(d);
	seekdir(d, at);
	P(strcmp(next, readdir(d)->d_name));
	free(next);
	P(faccessat(dirfd(d), "17", F_OK, 0));
	int fd = openat(dirfd(d), "new", O_CREAT | O_RDWR, 0600);

	P(fd > 2);
	P(write(fd, "x", 1));
	P(close(fd));
	P(renameat(dirfd(d), "new", dirfd(d), "newer"));
	P(unlinkat(dirfd(d), "newer", 0));
	P(unlinkat(dirfd(d), "nope", 0));
	P(mkdirat(dirfd(d), "sub", 0700));
	P(unlinkat(dirfd(d), "sub", 0));
	P(unlinkat(dirfd(d), "sub", AT_REMOVEDIR));
	P(symlinkat("x", dirfd(d), "ln"));
	P(readlinkat(dirfd(d), "ln", name, sizeof name));
	P(unlinkat(dirfd(d), "ln", 0));
	P(closedir(d));
	P(opendir(in("f")) == NULL && errno == ENOTDIR);
	P(opendir(in("nope")) == NULL && errno == ENOENT);
	fd = open(in("many"), O_RDONLY | O_DIRECTORY);
	P(read(fd, name, 1));
	d = fdopendir(fd);
	P(strcmp(readdir(d)->d_name, "."));
	P(closedir(d));
}

static void working_directory(void)
{
	char buf[4096];

	P(mkdir(in("cwd"), 0755));
	P(chdir(in("cwd")));
	P(strcmp(getcwd(buf, sizeof buf), in("cwd")));
	P(close(open("here", O_CREAT | O_WRONLY, 0600)));
	P(access(in("cwd/here"), F_OK));
	P(mkdir("sub", 0700));
	P(chdir("sub"));
	P(access("../here", F_OK));
	P(chdir("../.."));
	P(access("cwd/sub", F_OK));
	P(chdir("nope"));
	P(chdir("/"));
	P(strcmp(getcwd(buf, sizeof buf), "/"));
	P(access("cwd", F_OK));
}

static void temporary(void)
{
	char *t = in("tmp.XXXXXX"), *s = in("tmp.XXXXXX.dat"), *d = in("dir.XXXXXX");
	struct stat st;

	int fd = mkstemp(t);
	P(fd > 2);
	P(fstat(fd, &st));
	printf("%o\n", st.st_mode);
	P(unlink(t));
	P(write(fd, "still there", 11));
	P(lseek(fd, 0, SEEK_SET));
	P(read(fd, (char[32]){0}, 32));
	P(close(fd));
	P(mkstemps(s, 4) > 2);
	P(unlink(s));
	P(mkdtemp(d) == d);
	P(rmdir(d));
	P(mkstemp(in("bad")));
}

static void waiting(void)
{
	int fd = open(in("poll"), O_RDWR | O_CREAT, 0600);
	int p[2];
	struct pollfd fds[2] = {{.fd = fd, .events = POLLIN | POLLOUT}};
	fd_set r, w;
	struct timeval tv = {10, 0};

	P(pipe(p));
	fds[1] = (struct pollfd){.fd = p[0], .events = POLLIN};
	P(poll(fds, 2, -1));
	P(fds[0].revents);
	P(fds[1].revents);
	P(write(p[1], "x", 1));
	P(poll(fds, 2, -1));
	P(fds[1].revents);
	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_SET(fd, &r);
	FD_SET(p[0], &r);
	FD_SET(fd, &w);
	P(select(200, &r, &w, NULL, &tv));
	P(FD_ISSET(fd, &r) && FD_ISSET(p[0], &r) && FD_ISSET(fd, &w));
	P(close(fd));
	P(close(p[0]) | close(p[1]));
}

static void mapping(void)
{
	int fd = open(in("map"), O_RDWR | O_CREAT, 0600);

	P(write(fd, "mapped", 6));
	char *m = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

	P(m != MAP_FAILED && memcmp(m, "mapped\0", 8) == 0);
	P(munmap(m, 4096));
	m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	m[0] = 'M';
	P(memcmp(m, "Mapped", 6));
	P(munmap(m, 4096));
	P(pread(fd, (char[8]){0}, 8, 0));
	P(close(fd));
}

static void asynchronous(void)
{
	char a[] = "asynchronous", b[16] = "";
	int fd = open(in("aio"), O_RDWR | O_CREAT, 0600);
	struct aiocb w = {.aio_fildes = fd, .aio_buf = a, .aio_nbytes = sizeof a};
	struct aiocb r = {.aio_fildes = fd, .aio_buf = b, .aio_nbytes = sizeof b};

	P(aio_write(&w));
	P(aio_suspend((const struct aiocb *const[]){&w}, 1, NULL));
	P(aio_error(&w));
	P(aio_return(&w));
	P(aio_read(&r));
	P(aio_suspend((const struct aiocb *const[]){&r}, 1, NULL));
	P(aio_return(&r));
	printf("%s\n", b);
	P(aio_cancel(fd, NULL) >= 0);
	P(close(fd));
}

/* Two threads append to one file, another one writes a second file. */
static void *appender(void *name)
{
	int fd = open(name, O_WRONLY | O_APPEND | O_CREAT, 0600);
	long n = 0;

	for (int i = 0; i < 500; i++)
		n += write(fd, "0123456789", 10);
	close(fd);
	return (void *)n;
}

static void threads(void)
{
	char *one = strdup(in("t1")), *two = strdup(in("t2"));
	char *files[] = {one, one, two};
	pthread_t t[3];
	struct stat st;

	for (int i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, appender, files[i]);
	for (int i = 0; i < 3; i++) {
		void *n;

		pthread_join(t[i], &n);
		P((long)n);
	}
	P(stat(one, &st));
	P(st.st_size);
}

static void children(void)
{
	int status;
	char line[64];

	P(system("true"));
	FILE *p = popen("echo popen works", "r");

	if (fgets(line, sizeof line, p) != NULL)
		printf("%s", line);
	P(pclose(p));
	pid_t pid = fork();

	if (pid == 0)
		_exit(7);
	P(waitpid(pid, &status, 0) == pid);
	P(WEXITSTATUS(status));
	pid = vfork();
	if (pid == 0)
		_exit(8);
	P(waitpid(pid, &status, 0) == pid);
	P(WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	dir = argv[1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	basics();
	duplicates();
	vectors();
	names();
	attributes();
	directories();
	working_directory();
	temporary();
	waiting();
	mapping();
	asynchronous();
	threads();
	children();
	return 0;
}
