/* Descriptors, reading and writing. */
#include "run.h"

#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <termios.h>

#include <linux/close_range.h>

/* ---- opening and closing ---- */

/* An open without O_CREAT is called as programs do, without a mode. */
VERB(open)
{
	int flags = (int)N(1);

	if (flags & (O_CREAT | O_TMPFILE))
		descriptor(BY(open(P(0), flags, MODE(2)), open64(P(0), flags, MODE(2)), openat(here, P(0), flags, MODE(2))));
	else
		descriptor(BY(open(P(0), flags), open64(P(0), flags), openat64(here, P(0), flags)));
}

VERB(openat) { descriptor(BY(openat, openat64, openat)(F(0), R(1), (int)N(2), MODE(3))); }
VERB(creat) { descriptor(BY(creat, creat64, creat)(P(0), MODE(1))); }
VERB(close) { number(close(F(0))); forget(0); }
CALL(close_range, close_range((unsigned)N(0), (unsigned)N(1), (int)N(2)))
VERB(closefrom) { closefrom(F(0)); say("done"); }
VERB(dup) { descriptor(BY(dup(F(0)), fcntl64(F(0), F_DUPFD, 0), fcntl(F(0), F_DUPFD_CLOEXEC, 0))); }
VERB(dup2) { descriptor(dup2(F(0), F(1))); }
VERB(dup3) { descriptor(dup3(F(0), F(1), (int)N(2))); }
VERB(dupfd) { descriptor(BY(fcntl, fcntl64, fcntl)(F(0), (int)N(1), (int)N(2))); }
CALL(same, F(0) == F(1))
CALL(atleast, F(0) >= (int)N(1))

VERB(fcntl)
{
	if (words() > 2)
		number(BY(fcntl, fcntl64, fcntl)(F(0), (int)N(1), (int)N(2)));
	else
		number(BY(fcntl, fcntl64, fcntl)(F(0), (int)N(1)));
}

/* getfl names the flags that programs look at; O_LARGEFILE comes and goes. */
VERB(getfl)
{
	int flags = fcntl(F(0), F_GETFL);

	if (flags < 0) {
		number(flags);
		return;
	}
	say("%s", (flags & O_ACCMODE) == O_RDWR ? "RDWR" : (flags & O_ACCMODE) == O_WRONLY ? "WRONLY" : "RDONLY");
	say("%s%s%s", flags & O_APPEND ? " APPEND" : "", flags & O_NONBLOCK ? " NONBLOCK" : "", flags & O_DIRECT ? " DIRECT" : "");
	say("%s%s%s", (flags & O_SYNC) == O_SYNC ? " SYNC" : "", flags & O_DSYNC ? " DSYNC" : "", flags & O_PATH ? " PATH" : "");
	say("%s%s%s", flags & O_NOATIME ? " NOATIME" : "", flags & O_DIRECTORY ? " DIRECTORY" : "", flags & O_NOFOLLOW ? " NOFOLLOW" : "");
	say("%s", flags & (O_CREAT | O_EXCL | O_TRUNC | O_CLOEXEC) ? " once" : "");
}

/* lock f COMMAND TYPE WHENCE START LENGTH */
VERB(lock)
{
	struct flock l = {.l_type = (short)N(2), .l_whence = (short)N(3), .l_start = N(4), .l_len = N(5)};
	int r = BY(fcntl, fcntl64, fcntl)(F(0), (int)N(1), &l);

	number(r);
	if (r == 0 && (N(1) == F_GETLK || N(1) == F_OFD_GETLK))
		say(" %s", l.l_type == F_UNLCK ? "unlocked" : l.l_type == F_WRLCK ? "write" : "read");
}

CALL(flock, flock(F(0), (int)N(1)))
CALL(lockf, BY(lockf, lockf64, lockf)(F(0), (int)N(1), N(2)))
CALL(isatty, isatty(F(0)) ? 1 : -1)
VERB(tcgetattr) { struct termios t; number(tcgetattr(F(0), &t)); }

VERB(ioctl)
{
	long long out = 0;
	int r = ioctl(F(0), (unsigned long)N(1), &out);

	number(r);
	if (r == 0 && N(1) == FIONREAD)
		say(" %d", (int)out);
}

/* descriptors N: at most so many, from here on; 0 is the former limit */
VERB(descriptors)
{
	static struct rlimit before;
	struct rlimit now;

	if (before.rlim_max == 0)
		getrlimit(RLIMIT_NOFILE, &before);
	now = before;
	if (N(0) != 0)
		now.rlim_cur = (rlim_t)(N(0));
	number(setrlimit(RLIMIT_NOFILE, &now));
}

/* exhaust PATH FLAGS: opens until that fails, says how, and closes all */
VERB(exhaust)
{
	static int fds[1 << 16];
	int n = 0;

	while (n < 1 << 16 && (fds[n] = BY(open, open64, open)(P(0), (int)N(1), 0600)) >= 0)
		n++;
	say("%s", n < 1 << 16 ? error_name() : "no end");
	while (n > 0)
		close(fds[--n]);
}

/* ---- data ---- */

/* file PATH [TEXT [MODE]]: makes a file */
VERB(file)
{
	const char *text = words() > 1 ? S(1) : "";
	int fd = open(P(0), O_WRONLY | O_CREAT | O_TRUNC, MODE(2));

	if (fd < 0 || write(fd, text, strlen(text)) < 0 || close(fd) != 0)
		number(-1);
	else
		number(0);
}

/* cat PATH: what is in it */
VERB(cat)
{
	int fd = open(P(0), O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, buffer, BUFFER_SIZE);

	if (fd >= 0)
		close(fd);
	bytes(n, buffer);
}

VERB(read)
{
	size_t n = (size_t)N(1);
	struct iovec iov[2] = {{buffer, n / 2}, {buffer + n / 2, n - n / 2}};

	bytes(BY(read(F(0), buffer, n), readv(F(0), iov, 1 + (n > 1)), readv(F(0), iov, 2)), buffer);
}

VERB(bytes) { char c = (char)N(1); number(write(F(0), &c, 1)); }
VERB(readbad) { number(read(F(0), nothing(), (size_t)N(1))); }
VERB(writebad) { number(write(F(0), nothing(), (size_t)N(1))); }

VERB(write)
{
	struct iovec iov[2] = {{(char *)S(1), L(1)}, {NULL, 0}};

	number(BY(write(F(0), S(1), L(1)), writev(F(0), iov, 1), writev(F(0), iov, 2)));
}

VERB(pread)
{
	size_t n = (size_t)N(1);
	struct iovec iov = {buffer, n};

	bytes(BY(pread(F(0), buffer, n, N(2)), pread64(F(0), buffer, n, N(2)), preadv(F(0), &iov, 1, N(2))), buffer);
}

VERB(pwrite)
{
	struct iovec iov = {(char *)S(1), L(1)};

	number(BY(pwrite(F(0), S(1), L(1), N(2)), pwrite64(F(0), S(1), L(1), N(2)), pwritev(F(0), &iov, 1, N(2))));
}

/* readv f COUNT LENGTH...: count may be more or less than lengths there are */
static struct iovec *vector(int first, bool writing)
{
	static struct iovec iov[1100];
	char *p = buffer;

	memset(iov, 0, sizeof iov);
	for (int i = first; i < words(); i++) {
		iov[i - first] = (struct iovec){p, writing ? L(i) : (size_t)N(i)};
		if (writing)
			memcpy(p, S(i), L(i));
		p += iov[i - first].iov_len < BUFFER_SIZE ? iov[i - first].iov_len : 0;
	}
	return iov;
}

VERB(readv) { bytes(readv(F(0), vector(2, false), (int)N(1)), buffer); }
VERB(writev) { number(writev(F(0), vector(2, true), (int)N(1))); }
VERB(preadv) { bytes(BY(preadv, preadv64, preadv)(F(0), vector(3, false), (int)N(1), N(2)), buffer); }
VERB(pwritev) { number(BY(pwritev, pwritev64, pwritev)(F(0), vector(3, true), (int)N(1), N(2))); }
VERB(preadv2) { bytes(BY(preadv2, preadv64v2, preadv2)(F(0), vector(4, false), (int)N(1), N(2), (int)N(3)), buffer); }
VERB(pwritev2) { number(BY(pwritev2, pwritev64v2, pwritev2)(F(0), vector(4, true), (int)N(1), N(2), (int)N(3))); }
CALL(lseek, BY(lseek, lseek64, lseek)(F(0), N(1), (int)N(2)))
CALL(fsync, BY(fsync, fsync, fdatasync)(F(0)))
CALL(syncfs, syncfs(F(0)))
VERB(sync) { sync(); say("done"); }
CALL(sync_file_range, sync_file_range(F(0), N(1), N(2), (unsigned)N(3)))
CALL(ftruncate, BY(ftruncate, ftruncate64, ftruncate)(F(0), N(1)))
CALL(truncate, BY(truncate, truncate64, truncate)(P(0), N(1)))
CALL(fallocate, BY(fallocate, fallocate64, fallocate)(F(0), (int)N(1), N(2), N(3)))
VERB(posix_fallocate) { error_number(BY(posix_fallocate, posix_fallocate64, posix_fallocate)(F(0), N(1), N(2))); }
VERB(posix_fadvise) { error_number(BY(posix_fadvise, posix_fadvise64, posix_fadvise)(F(0), N(1), N(2), (int)N(3))); }
CALL(readahead, readahead(F(0), N(1), (size_t)N(2)))

/* An offset of `-` is none: the file's own is used. */
static off64_t *offset(int i, off64_t *at)
{
	if (word_is(i, "-"))
		return NULL;
	*at = N(i);
	return at;
}

/* between prints the result and the offsets that the call has moved. */
static void between(long long n, const off64_t *a, const off64_t *b)
{
	number(n);
	if (n >= 0 && a != NULL)
		say(" in %lld", (long long)*a);
	if (n >= 0 && b != NULL)
		say(" out %lld", (long long)*b);
}

VERB(copy_file_range)
{
	off64_t a, b, *in = offset(1, &a), *out = offset(3, &b);

	between(copy_file_range(F(0), in, F(2), out, (size_t)N(4), (unsigned)N(5)), in, out);
}

VERB(sendfile)
{
	off64_t a, *in = offset(2, &a);

	between(BY(sendfile, sendfile64, sendfile)(F(0), F(1), in, (size_t)N(3)), in, NULL);
}

/* splice and tee need a pipe: f to it, or it to f. */
VERB(splicein)
{
	int p[2];

	if (pipe(p) != 0)
		return;
	number(splice(F(0), NULL, p[1], NULL, (size_t)N(1), 0));
	close(p[0]);
	close(p[1]);
}

VERB(spliceout)
{
	int p[2];

	if (pipe(p) != 0 || write(p[1], "piped", 5) != 5)
		return;
	number(splice(p[0], NULL, F(0), NULL, 5, 0));
	close(p[0]);
	close(p[1]);
}

VERB(tee)
{
	int p[2];

	if (pipe(p) != 0)
		return;
	number(tee(F(0), p[1], 5, 0));
	close(p[0]);
	close(p[1]);
}

VERB(vmsplice)
{
	struct iovec iov = {buffer, 5};

	number(vmsplice(F(0), &iov, 1, 0));
}
