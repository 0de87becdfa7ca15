/* Makes system calls by number (syscall) in the directory argv[1], like libuv. Prints the results. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define P(expr) print(#expr, (long)(expr))

static long print(const char *what, long value)
{
	int e = errno;

	printf("%s = %ld%s%s\n", what, value, value == -1 ? " " : "", value == -1 ? strerrorname_np(e) : "");
	return value;
}

/* open2 uses openat if the kernel lacks openat2, like programs that know openat2. */
static int open2(const char *path)
{
	struct open_how how = {.flags = O_RDONLY};
	long fd = syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);

	return fd < 0 && errno == ENOSYS ? open(path, O_RDONLY) : (int)fd;
}

int main(int argc, char **argv)
{
	char buf[4096] = "", here[4096] = "";
	struct stat st;
	struct statx stx;
	struct timespec times[] = {{1, 2}, {3, 4}};
	struct iovec iov[] = {{"ab", 2}, {"cde", 3}};
	int fd;

	if (argc < 2 || syscall(SYS_chdir, argv[1]) != 0)
		return 1;
	P(syscall(SYS_getcwd, here, sizeof here) == (long)strlen(getcwd(NULL, 0)) + 1);
	P(strcmp(here, getcwd(NULL, 0)));
	P(syscall(SYS_getcwd, here, 2L));
	P(syscall(SYS_getcwd, here, 0L));
	P((fd = (int)syscall(SYS_openat, AT_FDCWD, "f", O_CREAT | O_RDWR, 0640)) >= 0);
	P(syscall(SYS_write, fd, "hello", 5));
	P(syscall(SYS_pwrite64, fd, "J", 1, 0L));
	P(syscall(SYS_writev, fd, iov, 2));
	P(syscall(SYS_pwritev, fd, iov, 2, 10L, 0L));
	P(syscall(SYS_lseek, fd, 0L, SEEK_CUR));
	P(syscall(SYS_pread64, fd, buf, sizeof buf, 0L));
	P(strcmp(buf, "Jelloabcdeabcde"));
	P(syscall(SYS_ftruncate, fd, 7L));
	P(syscall(SYS_fsync, fd));
	P(syscall(SYS_statx, AT_FDCWD, "f", 0, STATX_BASIC_STATS, &stx));
	P(stx.stx_size);
	P(syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_SIZE, &stx));
	P(stx.stx_size);
	P(syscall(SYS_newfstatat, AT_FDCWD, "f", &st, 0));
	P(st.st_size);
	P(st.st_mode);
	P(syscall(SYS_fstat, fd, &st));
	P(st.st_size);
	P(syscall(SYS_utimensat, AT_FDCWD, "f", times, 0));
	times[1].tv_sec = 5;
	P(syscall(SYS_utimensat, fd, NULL, times, 0));
	P(syscall(SYS_utimensat, -1, NULL, times, 0));
	P(stat("f", &st) == 0 ? st.st_mtim.tv_sec : -1);
	P(syscall(SYS_fchmodat, AT_FDCWD, "f", 0600));
	P(syscall(SYS_faccessat, AT_FDCWD, "f", W_OK));
	P(syscall(SYS_faccessat, AT_FDCWD, "none", F_OK));
	P(syscall(SYS_renameat2, AT_FDCWD, "f", AT_FDCWD, "g", RENAME_NOREPLACE));
	P(syscall(SYS_mkdirat, AT_FDCWD, "d", 0755));
	P(syscall(SYS_symlinkat, "g", AT_FDCWD, "s"));
	P(syscall(SYS_readlinkat, AT_FDCWD, "s", buf, 10L));
	P(open2("g") >= 0);
	P(open2("none"));
	P(syscall(SYS_dup3, fd, 100, O_CLOEXEC));
	P(syscall(SYS_fcntl, 100, F_GETFD));
	P(syscall(SYS_close, 100));
	P(syscall(SYS_read, 100, buf, 1L));
	P(syscall(SYS_unlinkat, AT_FDCWD, "g", 0));
	P(syscall(SYS_unlinkat, AT_FDCWD, "d", AT_REMOVEDIR));
	int at = (int)syscall(SYS_openat, AT_FDCWD, ".", O_RDONLY | O_DIRECTORY);
	long n = syscall(SYS_getdents64, at, buf, sizeof buf);
	int names = 0;

	for (long i = 0; i < n; names++)
		i += ((struct dirent64 *)(buf + i))->d_reclen;
	P(names);
	P(syscall(SYS_getpid) == getpid());
	fflush(stdout);
	syscall(SYS_exit_group, 0);
	return 1;
}
