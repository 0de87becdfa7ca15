/* Attributes, permissions, times. */
#include "run.h"

#include <grp.h>

#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <time.h>
#include <utime.h>

int __xstat(int version, const char *path, struct stat *st);
int __lxstat(int version, const char *path, struct stat *st);
int __fxstat(int version, int fd, struct stat *st);
int __fxstatat(int version, int fd, const char *path, struct stat *st, int flags);
int __xstat64(int version, const char *path, struct stat64 *st);
int __lxstat64(int version, const char *path, struct stat64 *st);
int __fxstat64(int version, int fd, struct stat64 *st);

/* attributes prints what does not depend on the file system: not the sizes of
 * directories, nor numbers of inodes. */
void attributes(int r, const struct stat *st)
{
	if (r != 0) {
		number(r);
		return;
	}
	say("%s %04o links %lu", S_ISDIR(st->st_mode) ? "dir" : S_ISLNK(st->st_mode) ? "link" : S_ISREG(st->st_mode) ? "file" : "other",
	    st->st_mode & 07777, (unsigned long)st->st_nlink);
	if (!S_ISDIR(st->st_mode))
		say(" size %lld", (long long)st->st_size);
	say(" owner %u:%u", st->st_uid, st->st_gid);
}

VERB(stat)
{
	struct stat st = {0};

	attributes(BY(stat(P(0), &st), stat64(P(0), (struct stat64 *)&st), fstatat(here, P(0), &st, 0)), &st);
}

VERB(lstat)
{
	struct stat st = {0};

	attributes(BY(lstat(P(0), &st), lstat64(P(0), (struct stat64 *)&st), fstatat64(here, P(0), (struct stat64 *)&st, AT_SYMLINK_NOFOLLOW)), &st);
}

VERB(fstat)
{
	struct stat st = {0};

	attributes(BY(fstat(F(0), &st), fstat64(F(0), (struct stat64 *)&st), fstatat(F(0), "", &st, AT_EMPTY_PATH)), &st);
}

/* The names that programs built before glibc 2.33 call. */
VERB(oldstat)
{
	struct stat st = {0};

	attributes(BY(__xstat(1, P(0), &st), __xstat64(1, P(0), (struct stat64 *)&st), __fxstatat(1, here, P(0), &st, 0)), &st);
}

VERB(oldlstat)
{
	struct stat st = {0};

	attributes(BY(__lxstat(1, P(0), &st), __lxstat64(1, P(0), (struct stat64 *)&st), __lxstat(1, P(0), &st)), &st);
}

VERB(oldfstat)
{
	struct stat st = {0};

	attributes(BY(__fxstat(1, F(0), &st), __fxstat64(1, F(0), (struct stat64 *)&st), __fxstat(1, F(0), &st)), &st);
}

VERB(fstatat) { struct stat st = {0}; attributes(fstatat(F(0), R(1), &st, (int)N(2)), &st); }
VERB(statbad) { number(stat(P(0), nowhere)); }
VERB(fstatbad) { number(fstat(F(0), nowhere)); }

/* statx d PATH FLAGS MASK */
VERB(statx)
{
	struct statx x = {0};
	int r = statx(F(0), R(1), (int)N(2), (unsigned)N(3), &x);
	struct stat st = {.st_mode = x.stx_mode, .st_nlink = x.stx_nlink, .st_size = (off_t)x.stx_size, .st_uid = x.stx_uid, .st_gid = x.stx_gid};

	attributes(r, &st);
	if (r == 0)
		say(" mask %s", (N(3) & STATX_BASIC_STATS & ~x.stx_mask) == 0 ? "has all" : "lacks some");
}

/* sameinode A B: two paths, not followed */
VERB(sameinode)
{
	struct stat a, b;

	if (lstat(P(0), &a) != 0 || lstat(P(1), &b) != 0)
		number(-1);
	else
		say("%s", a.st_ino == b.st_ino && a.st_dev == b.st_dev ? "same" : "different");
}

/* allocated f: whether there are blocks behind it, and no more than needed */
VERB(allocated)
{
	struct stat st;

	if (fstat(F(0), &st) != 0)
		number(-1);
	else
		say("%s", st.st_blocks == 0 ? "none" : st.st_blocks * 512 < st.st_size ? "less than its size" : "all");
}

VERB(statfs)
{
	struct statfs st;
	int r = BY(statfs(P(0), &st), statfs64(P(0), (struct statfs64 *)&st), statfs(P(0), &st));

	number(r);
	if (r == 0)
		say(" names %ld free %d", (long)st.f_namelen, st.f_bavail > 0 && st.f_bavail <= st.f_blocks);
}

VERB(fstatfs)
{
	struct statfs st;
	int r = BY(fstatfs(F(0), &st), fstatfs64(F(0), (struct statfs64 *)&st), fstatfs(F(0), &st));

	number(r);
	if (r == 0)
		say(" names %ld free %d", (long)st.f_namelen, st.f_bavail > 0);
}

VERB(statvfs)
{
	struct statvfs st;
	int r = BY(statvfs(P(0), &st), statvfs64(P(0), (struct statvfs64 *)&st), statvfs(P(0), &st));

	number(r);
	if (r == 0)
		say(" names %ld free %d", (long)st.f_namemax, st.f_bavail > 0);
}

VERB(fstatvfs)
{
	struct statvfs st;
	int r = BY(fstatvfs(F(0), &st), fstatvfs64(F(0), (struct statvfs64 *)&st), fstatvfs(F(0), &st));

	number(r);
	if (r == 0)
		say(" names %ld free %d", (long)st.f_namemax, st.f_bavail > 0);
}

CALL(pathconf, pathconf(P(0), (int)N(1)))
CALL(fpathconf, fpathconf(F(0), (int)N(1)))

/* ---- permissions ---- */

CALL(access, BY(access(P(0), (int)N(1)), access(P(0), (int)N(1)), faccessat(here, P(0), (int)N(1), 0)))
CALL(eaccess, BY(eaccess(P(0), (int)N(1)), euidaccess(P(0), (int)N(1)), faccessat(here, P(0), (int)N(1), AT_EACCESS)))
CALL(faccessat, faccessat(F(0), R(1), (int)N(2), (int)N(3)))
CALL(chmod, BY(chmod(P(0), (mode_t)N(1)), chmod(P(0), (mode_t)N(1)), fchmodat(here, P(0), (mode_t)N(1), 0)))
CALL(lchmod, lchmod(P(0), (mode_t)N(1)))
CALL(fchmod, fchmod(F(0), (mode_t)N(1)))
CALL(fchmodat, fchmodat(F(0), R(1), (mode_t)N(2), (int)N(3)))
CALL(chown, BY(chown(P(0), (uid_t)N(1), (gid_t)N(2)), chown(P(0), (uid_t)N(1), (gid_t)N(2)), fchownat(here, P(0), (uid_t)N(1), (gid_t)N(2), 0)))
CALL(lchown, BY(lchown(P(0), (uid_t)N(1), (gid_t)N(2)), lchown(P(0), (uid_t)N(1), (gid_t)N(2)), fchownat(here, P(0), (uid_t)N(1), (gid_t)N(2), AT_SYMLINK_NOFOLLOW)))
CALL(fchown, fchown(F(0), (uid_t)N(1), (gid_t)N(2)))
CALL(fchownat, fchownat(F(0), R(1), (uid_t)N(2), (gid_t)N(3), (int)N(4)))
VERB(become)
{
	uid_t uid = (uid_t)N(0);
	int r = setgroups(0, NULL);

	if (r == 0)
		r = setresgid(uid, uid, 0);
	if (r == 0)
		r = setresuid(uid, uid, 0);
	number(r);
}

/* groups sets the other groups of the process. */
VERB(groups)
{
	gid_t list[] = {(gid_t)N(0), (gid_t)N(1)};

	number(setgroups(2, list));
}

CALL(setgid, setgid((gid_t)N(0)))
CALL(initgroups, initgroups("root", (gid_t)N(1)))
CALL(setuid, setuid((uid_t)N(0)))
CALL(seteuid, seteuid((uid_t)N(0)))
CALL(setegid, setegid((gid_t)N(0)))
CALL(setreuid, setreuid((uid_t)N(0), (uid_t)N(1)))
CALL(setregid, setregid((gid_t)N(0), (gid_t)N(1)))
VERB(umask) { say("%04o", umask((mode_t)N(0))); }

/* ---- times ---- */

/* seen is what `times` has found before. */
static struct seen {
	char home[256], name[64];
	struct stat st;
} seen[16];

static const char *change(struct timespec a, struct timespec b)
{
	if (a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec)
		return "kept";
	return b.tv_sec > a.tv_sec || (b.tv_sec == a.tv_sec && b.tv_nsec > a.tv_nsec) ? "later" : "earlier";
}

/*
 * next_tick waits until a change gets a later time than all before. Files
 * get times of the coarse clock, and since Linux 6.13 none below the newest
 * time of the fine clock that any file has been given: so the coarse clock
 * has to pass the fine one.
 */
static void next_tick(void)
{
	struct timespec fine, coarse;

	clock_gettime(CLOCK_REALTIME, &fine);
	do {
		usleep(500);
		clock_gettime(CLOCK_REALTIME_COARSE, &coarse);
	} while (strcmp(change(fine, coarse), "later") != 0);
}

static void compare_times(const char *name, const struct stat *st, bool access_too)
{
	static unsigned next;
	char cwd[256] = "";

	if (getcwd(cwd, sizeof cwd) == NULL)
		cwd[0] = '\0';
	for (struct seen *s = seen; s < seen + sizeof seen / sizeof *seen; s++)
		if (strcmp(s->home, cwd) == 0 && strcmp(s->name, name) == 0) {
			if (access_too)
				say("atime %s ", change(s->st.st_atim, st->st_atim));
			else
				say("mtime %s ctime %s", change(s->st.st_mtim, st->st_mtim), change(s->st.st_ctim, st->st_ctim));
			s->st = *st;
			next_tick();
			return;
		}
	struct seen *s = &seen[next++ % (sizeof seen / sizeof *seen)];

	snprintf(s->home, sizeof s->home, "%s", cwd);
	snprintf(s->name, sizeof s->name, "%s", name);
	s->st = *st;
	say("noted");
	next_tick();
}

/* times PATH: whether mtime and ctime have changed since the last time */
VERB(times)
{
	struct stat st;

	if (lstat(P(0), &st) != 0)
		number(-1);
	else
		compare_times(R(0), &st, false);
}

VERB(ftimes)
{
	struct stat st;

	if (fstat(F(0), &st) != 0)
		number(-1);
	else
		compare_times(R(0), &st, false);
}

VERB(atime)
{
	struct stat st;

	if (lstat(P(0), &st) != 0)
		number(-1);
	else
		compare_times(R(0), &st, true);
}

/* settimes PATH: the times as numbers, for those that were set */
VERB(settimes)
{
	struct stat st;

	if (lstat(P(0), &st) != 0)
		number(-1);
	else
		say("%lld.%09ld %lld.%09ld", (long long)st.st_atim.tv_sec, st.st_atim.tv_nsec, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

/* timesnow PATH: whether the times are those of now, give or take a minute */
VERB(timesnow)
{
	struct stat st;
	time_t now = time(NULL);

	if (lstat(P(0), &st) != 0)
		number(-1);
	else
		say("atime %d mtime %d ctime %d", llabs(now - st.st_atime) < 60, llabs(now - st.st_mtime) < 60, llabs(now - st.st_ctime) < 60);
}

/* from reads times: NULL, or seconds and nanoseconds (UTIME_NOW, UTIME_OMIT) of both */
static struct timespec *from(int i, struct timespec ts[2])
{
	if (word_is(i, "NULL"))
		return NULL;
	for (int k = 0; k < 2; k++)
		ts[k] = (struct timespec){.tv_sec = N(i + 2 * k), .tv_nsec = N(i + 2 * k + 1)};
	return ts;
}

static struct timeval *micro(int i, struct timeval tv[2])
{
	if (word_is(i, "NULL"))
		return NULL;
	for (int k = 0; k < 2; k++)
		tv[k] = (struct timeval){.tv_sec = N(i + 2 * k), .tv_usec = N(i + 2 * k + 1)};
	return tv;
}

/* utimensat d PATH FLAGS TIMES */
VERB(utimensat) { struct timespec ts[2]; number(utimensat(F(0), R(1), from(3, ts), (int)N(2))); }
VERB(futimens) { struct timespec ts[2]; number(futimens(F(0), from(1, ts))); }
VERB(utimes) { struct timeval tv[2]; number(BY(utimes(P(0), micro(1, tv)), utimes(P(0), micro(1, tv)), futimesat(here, P(0), micro(1, tv)))); }
VERB(futimesat) { struct timeval tv[2]; number(futimesat(F(0), R(1), micro(2, tv))); }
VERB(lutimes) { struct timeval tv[2]; number(lutimes(P(0), micro(1, tv))); }
VERB(futimes) { struct timeval tv[2]; number(futimes(F(0), micro(1, tv))); }

VERB(utime)
{
	struct utimbuf t;
	bool now = word_is(1, "NULL");

	if (!now)
		t = (struct utimbuf){N(1), N(2)};
	number(utime(P(0), now ? NULL : &t));
}

/* ---- extended attributes ---- */

CALL(setxattr, setxattr(P(0), R(1), S(2), L(2), (int)N(3)))
CALL(lsetxattr, lsetxattr(P(0), R(1), S(2), L(2), (int)N(3)))
CALL(fsetxattr, fsetxattr(F(0), R(1), S(2), L(2), (int)N(3)))
CALL(getxattr, getxattr(P(0), R(1), buffer, BUFFER_SIZE))
CALL(lgetxattr, lgetxattr(P(0), R(1), buffer, BUFFER_SIZE))
CALL(fgetxattr, fgetxattr(F(0), R(1), buffer, BUFFER_SIZE))
CALL(listxattr, listxattr(P(0), buffer, BUFFER_SIZE))
CALL(llistxattr, llistxattr(P(0), buffer, BUFFER_SIZE))
CALL(flistxattr, flistxattr(F(0), buffer, BUFFER_SIZE))
CALL(removexattr, removexattr(P(0), R(1)))
CALL(lremovexattr, lremovexattr(P(0), R(1)))
CALL(fremovexattr, fremovexattr(F(0), R(1)))
