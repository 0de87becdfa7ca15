/* stat, statfs, chmod, chown, utime and their families. */
#include <linux/magic.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "nv.h"

/* The device number of every mount: no driver has this one. */
#define DEVICE makedev(0x6e76, 0x6372)

/* What st_blksize advises: large enough to keep several commands in flight,
 * small enough for programs that allocate a buffer of it per file. */
#define BLOCK_SIZE (256 << 10)

/* What statfs says of the type. ROMIO and others look for types they treat
 * specially; this is none of them ("nvcr"). */
#define FILE_SYSTEM 0x6e766372

#define NAME_LENGTH 255

static struct timespec timespec_of(struct nv_time t)
{
	return (struct timespec){.tv_sec = t.sec, .tv_nsec = t.nsec};
}

static int fill_stat(int result, const struct nv_attr *attr, struct stat *st)
{
	if (result != 0)
		return -1;
	if (nv_nowhere(st))
		return nv_error(EFAULT);
	*st = (struct stat){
		.st_dev = DEVICE,
		.st_ino = attr->ino,
		.st_mode = attr->mode,
		.st_nlink = attr->nlink,
		.st_uid = attr->uid,
		.st_gid = attr->gid,
		.st_size = attr->size,
		.st_blksize = BLOCK_SIZE,
		.st_blocks = attr->blocks,
		.st_atim = timespec_of(attr->atime),
		.st_mtim = timespec_of(attr->mtime),
		.st_ctim = timespec_of(attr->ctime),
	};
	return 0;
}

int nv_stat(struct nv_place *at, int follow, struct stat *st)
{
	struct nv_attr attr;

	return fill_stat((int)rt_stat(at, follow, &attr), &attr, st);
}

int nv_fstat(nv_handle h, struct stat *st)
{
	struct nv_attr attr;

	return fill_stat((int)rt_fstat(h, &attr), &attr, st);
}

/* attr_at serves the calls that take a place and flags of the AT_ family. */
static int attr_at(struct nv_place *at, int flags, struct nv_attr *attr)
{
	if ((flags & AT_EMPTY_PATH) && *at->path == '\0')
		return (int)rt_fstat(at->dir, attr);
	return (int)rt_stat(at, !(flags & AT_SYMLINK_NOFOLLOW), attr);
}

int nv_fstatat(struct nv_place *at, struct stat *st, int flags)
{
	struct nv_attr attr;

	if (flags & ~(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT))
		return nv_error(EINVAL);
	return fill_stat(attr_at(at, flags, &attr), &attr, st);
}

static struct statx_timestamp stamp_of(struct nv_time t)
{
	return (struct statx_timestamp){.tv_sec = t.sec, .tv_nsec = (uint32_t)t.nsec};
}

int nv_statx(struct nv_place *at, int flags, unsigned mask, struct statx *stx)
{
	struct nv_attr attr;

	const int known = AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_SYNC_TYPE;

	if ((mask & STATX__RESERVED) || (flags & ~known) || (flags & AT_STATX_SYNC_TYPE) == AT_STATX_SYNC_TYPE)
		return nv_error(EINVAL);
	if (attr_at(at, flags, &attr) != 0)
		return -1;
	if (nv_nowhere(stx))
		return nv_error(EFAULT);
	*stx = (struct statx){
		.stx_mask = STATX_BASIC_STATS | STATX_BTIME,
		.stx_blksize = BLOCK_SIZE,
		.stx_nlink = attr.nlink,
		.stx_uid = attr.uid,
		.stx_gid = attr.gid,
		.stx_mode = (uint16_t)attr.mode,
		.stx_ino = attr.ino,
		.stx_size = (uint64_t)attr.size,
		.stx_blocks = (uint64_t)attr.blocks,
		.stx_atime = stamp_of(attr.atime),
		.stx_btime = stamp_of(attr.btime),
		.stx_ctime = stamp_of(attr.ctime),
		.stx_mtime = stamp_of(attr.mtime),
		.stx_dev_major = major(DEVICE),
		.stx_dev_minor = minor(DEVICE),
	};
	return 0;
}

/* exists fails like statfs of a path that is not there. */
static int exists(struct nv_place *at)
{
	struct nv_attr attr;

	return (int)rt_stat(at, 1, &attr);
}

static int fill_statfs(struct statfs *st)
{
	struct nv_statfs fs;

	if (rt_statfs(&fs) != 0)
		return -1;
	if (nv_nowhere(st))
		return nv_error(EFAULT);
	*st = (struct statfs){
		.f_type = FILE_SYSTEM,
		.f_bsize = (long)fs.block,
		.f_frsize = (long)fs.block,
		.f_blocks = fs.blocks,
		.f_bfree = fs.free,
		.f_bavail = fs.free,
		.f_files = fs.files + fs.files_free,
		.f_ffree = fs.files_free,
		.f_namelen = NAME_LENGTH,
	};
	return 0;
}

int nv_statfs(struct nv_place *at, struct statfs *st)
{
	return exists(at) != 0 ? -1 : fill_statfs(st);
}

int nv_fstatfs(nv_handle h, struct statfs *st)
{
	(void)h;
	return fill_statfs(st);
}

static int fill_statvfs(struct statvfs *st)
{
	struct nv_statfs fs;

	if (rt_statfs(&fs) != 0)
		return -1;
	if (nv_nowhere(st))
		return nv_error(EFAULT);
	*st = (struct statvfs){
		.f_bsize = fs.block,
		.f_frsize = fs.block,
		.f_blocks = fs.blocks,
		.f_bfree = fs.free,
		.f_bavail = fs.free,
		.f_files = fs.files + fs.files_free,
		.f_ffree = fs.files_free,
		.f_favail = fs.files_free,
		.f_fsid = FILE_SYSTEM,
		.f_flag = ST_NOSUID | ST_NODEV | ST_NOEXEC,
		.f_namemax = NAME_LENGTH,
	};
	return 0;
}

int nv_statvfs(struct nv_place *at, struct statvfs *st)
{
	return exists(at) != 0 ? -1 : fill_statvfs(st);
}

int nv_fstatvfs(nv_handle h, struct statvfs *st)
{
	(void)h;
	return fill_statvfs(st);
}

long nv_fpathconf(nv_handle h, int name)
{
	(void)h;
	switch (name) {
	case _PC_LINK_MAX:
		return 65000;
	case _PC_NAME_MAX:
		return NAME_LENGTH;
	case _PC_PATH_MAX:
	case _PC_PIPE_BUF:
		return NV_PATH;
	case _PC_CHOWN_RESTRICTED:
	case _PC_NO_TRUNC:
	case _PC_2_SYMLINKS:
		return 1;
	case _PC_FILESIZEBITS:
		return 64;
	case _PC_REC_XFER_ALIGN:
	case _PC_ALLOC_SIZE_MIN:
	case _PC_REC_MIN_XFER_SIZE:
	case _PC_REC_INCR_XFER_SIZE:
		return 4096;
	case _PC_REC_MAX_XFER_SIZE:
	case _PC_SYMLINK_MAX:
	case _PC_SYNC_IO:
	case _PC_ASYNC_IO:
	case _PC_PRIO_IO:
	case _PC_SOCK_MAXBUF:
		return -1; /* no limit, or not offered: errno stays */
	case _PC_MAX_CANON:
	case _PC_MAX_INPUT:
		return 255;
	case _PC_VDISABLE:
		return 0;
	}
	return nv_error(EINVAL);
}

long nv_pathconf(struct nv_place *at, int name)
{
	return exists(at) != 0 ? -1 : nv_fpathconf(0, name);
}

int nv_faccessat(struct nv_place *at, int mode, int flags)
{
	struct nv_attr attr;

	if ((flags & AT_EMPTY_PATH) && *at->path == '\0')
		return (int)rt_fstat(at->dir, &attr);
	return (int)rt_access(at, mode, (flags & AT_SYMLINK_NOFOLLOW ? 0 : NV_ACCESS_FOLLOW) |
					(flags & AT_EACCESS ? NV_ACCESS_EFFECTIVE : 0));
}

/* set_at serves the calls that change attributes of a place. */
static int set_at(struct nv_place *at, int flags, const struct nv_setattr *in)
{
	if ((flags & AT_EMPTY_PATH) && *at->path == '\0')
		return (int)rt_fsetattr(at->dir, in);
	return (int)rt_setattr(at, !(flags & AT_SYMLINK_NOFOLLOW), in);
}

static struct nv_setattr mode_change(mode_t mode)
{
	return (struct nv_setattr){.valid = NV_SET_MODE, .mode = mode & 07777};
}

int nv_chmod(struct nv_place *at, mode_t mode, int follow)
{
	struct nv_setattr in = mode_change(mode);

	return (int)rt_setattr(at, follow, &in);
}

/* As on Linux, a link has no mode of its own to change. */
int nv_lchmod(struct nv_place *at, mode_t mode)
{
	struct nv_attr attr;

	if (rt_stat(at, 0, &attr) != 0)
		return -1;
	return S_ISLNK(attr.mode) ? nv_error(EOPNOTSUPP) : nv_chmod(at, mode, 0);
}

int nv_fchmod(nv_handle h, mode_t mode)
{
	struct nv_setattr in = mode_change(mode);

	return (int)rt_fsetattr(h, &in);
}

int nv_fchmodat(struct nv_place *at, mode_t mode, int flags)
{
	if (flags & ~AT_SYMLINK_NOFOLLOW)
		return nv_error(EINVAL);
	return flags ? nv_lchmod(at, mode) : nv_chmod(at, mode, 1);
}

static struct nv_setattr owner_change(uid_t uid, gid_t gid)
{
	return (struct nv_setattr){
		.valid = (uid == (uid_t)-1 ? 0 : NV_SET_UID) | (gid == (gid_t)-1 ? 0 : NV_SET_GID),
		.uid = uid,
		.gid = gid,
	};
}

int nv_chown(struct nv_place *at, uid_t uid, gid_t gid, int follow)
{
	struct nv_setattr in = owner_change(uid, gid);

	return (int)rt_setattr(at, follow, &in);
}

int nv_fchown(nv_handle h, uid_t uid, gid_t gid)
{
	struct nv_setattr in = owner_change(uid, gid);

	return (int)rt_fsetattr(h, &in);
}

int nv_fchownat(struct nv_place *at, uid_t uid, gid_t gid, int flags)
{
	struct nv_setattr in = owner_change(uid, gid);

	if (flags & ~(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH))
		return nv_error(EINVAL);
	return set_at(at, flags, &in);
}

/* times_change turns a pair of times, or NULL for now, into a change. It
 * returns false with EINVAL for nanoseconds that are none. */
static bool times_change(const struct timespec times[2], struct nv_setattr *in)
{
	*in = (struct nv_setattr){.valid = NV_SET_ATIME_NOW | NV_SET_MTIME_NOW};
	if (times == NULL)
		return true;
	in->valid = 0;
	for (int i = 0; i < 2; i++) {
		long nsec = times[i].tv_nsec;

		if (nsec == UTIME_OMIT)
			continue;
		if (nsec == UTIME_NOW) {
			in->valid |= i == 0 ? NV_SET_ATIME_NOW : NV_SET_MTIME_NOW;
			continue;
		}
		if (nsec < 0 || nsec >= 1000000000) {
			errno = EINVAL;
			return false;
		}
		in->valid |= i == 0 ? NV_SET_ATIME : NV_SET_MTIME;
		*(i == 0 ? &in->atime : &in->mtime) = (struct nv_time){times[i].tv_sec, nsec};
	}
	return true;
}

/* from_timeval returns the times as timespecs in out, or NULL for NULL. */
static const struct timespec *from_timeval(const struct timeval times[2], struct timespec out[2])
{
	if (times == NULL)
		return NULL;
	for (int i = 0; i < 2; i++) {
		out[i].tv_sec = times[i].tv_sec;
		/* Beyond a second it must stay out of range. */
		out[i].tv_nsec = times[i].tv_usec < 0 || times[i].tv_usec >= 1000000 ? -1 : times[i].tv_usec * 1000;
	}
	return out;
}

/* times_there says whether times, if any are given, are somewhere. */
static bool times_there(const void *times)
{
	return times == NULL || !nv_nowhere(times);
}

/* omits_both says that nothing is asked for: Linux does not even look at the file. */
static bool omits_both(const struct timespec times[2])
{
	return times != NULL && times[0].tv_nsec == UTIME_OMIT && times[1].tv_nsec == UTIME_OMIT;
}

int nv_utimensat(struct nv_place *at, const struct timespec times[2], int flags)
{
	struct nv_setattr in;

	if (!times_there(times))
		return nv_error(EFAULT);
	if (flags & ~(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH))
		return nv_error(EINVAL);
	if (omits_both(times))
		return 0;
	return times_change(times, &in) ? set_at(at, flags, &in) : -1;
}

int nv_futimens(nv_handle h, const struct timespec times[2])
{
	struct nv_setattr in;

	if (!times_there(times))
		return nv_error(EFAULT);
	if (omits_both(times))
		return 0;
	return times_change(times, &in) ? (int)rt_fsetattr(h, &in) : -1;
}

int nv_utimes(struct nv_place *at, const struct timeval times[2], int follow)
{
	struct timespec buf[2];

	if (!times_there(times))
		return nv_error(EFAULT);
	return nv_utimensat(at, from_timeval(times, buf), follow ? 0 : AT_SYMLINK_NOFOLLOW);
}

int nv_futimes(nv_handle h, const struct timeval times[2])
{
	struct timespec buf[2];

	if (!times_there(times))
		return nv_error(EFAULT);
	return nv_futimens(h, from_timeval(times, buf));
}

/* nv_futimesat without a path is futimes: so Java sets the times of an open file. */
int nv_futimesat(int dirfd, const char *path, const struct timeval times[2])
{
	nv_handle h = path == NULL ? nv_called_with(dirfd) : 0;
	struct nv_place at;

	if (h != 0)
		return nv_futimes(h, times);
	if (!nv_route(dirfd, path, &at))
		return REAL(futimesat)(dirfd, path, times);
	int result;

	do
		result = nv_utimes(&at, times, 1);
	while (nv_reroute(&at));
	if (at.outside) {
		char outside[strlen(at.path) + 1];

		nv_go_outside(&at, outside);
		return REAL(futimesat)(AT_FDCWD, at.path, times);
	}
	return result;
}

int nv_utime(struct nv_place *at, const struct utimbuf *times)
{
	if (times == NULL)
		return nv_utimensat(at, NULL, 0);
	if (nv_nowhere(times))
		return nv_error(EFAULT);
	struct timespec buf[2] = {{.tv_sec = times->actime}, {.tv_sec = times->modtime}};

	return nv_utimensat(at, buf, 0);
}
