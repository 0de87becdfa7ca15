/* The constants that the table may use. */
#include "run.h"

#include <aio.h>
#include <fts.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <linux/fs.h>
#include <linux/falloc.h>

#define C(name) {#name, (long long)(name)}

static const struct {
	const char *name;
	long long value;
} constants[] = {
	C(O_RDONLY), C(O_WRONLY), C(O_RDWR), C(O_ACCMODE), C(O_CREAT), C(O_EXCL), C(O_TRUNC), C(O_APPEND), C(O_NONBLOCK),
	C(O_SYNC), C(O_DSYNC), C(O_DIRECT), C(O_DIRECTORY), C(O_NOFOLLOW), C(O_NOATIME), C(O_CLOEXEC), C(O_PATH),
	C(O_TMPFILE), C(O_NOCTTY), C(O_ASYNC), C(O_LARGEFILE),
	C(SEEK_SET), C(SEEK_CUR), C(SEEK_END), C(SEEK_DATA), C(SEEK_HOLE),
	C(AT_FDCWD), C(AT_EMPTY_PATH), C(AT_SYMLINK_NOFOLLOW), C(AT_SYMLINK_FOLLOW), C(AT_REMOVEDIR), C(AT_EACCESS),
	C(AT_NO_AUTOMOUNT), C(AT_STATX_FORCE_SYNC), C(AT_STATX_DONT_SYNC),
	C(RENAME_NOREPLACE), C(RENAME_EXCHANGE), C(RENAME_WHITEOUT),
	C(F_OK), C(R_OK), C(W_OK), C(X_OK),
	C(F_DUPFD), C(F_DUPFD_CLOEXEC), C(F_GETFD), C(F_SETFD), C(F_GETFL), C(F_SETFL), C(FD_CLOEXEC),
	C(F_SETLK), C(F_SETLKW), C(F_GETLK), C(F_OFD_SETLK), C(F_OFD_GETLK), C(F_RDLCK), C(F_WRLCK), C(F_UNLCK),
	C(F_SETPIPE_SZ), C(F_GETPIPE_SZ), C(F_SETLEASE), C(F_GETLEASE), C(F_ADD_SEALS), C(F_GET_SEALS),
	C(F_GETOWN), C(F_GETSIG), C(F_NOTIFY), C(F_SETLKW),
	C(LOCK_SH), C(LOCK_EX), C(LOCK_UN), C(LOCK_NB), C(F_LOCK), C(F_TLOCK), C(F_ULOCK), C(F_TEST),
	C(RWF_HIPRI), C(RWF_DSYNC), C(RWF_SYNC), C(RWF_NOWAIT), C(RWF_APPEND),
	C(FALLOC_FL_KEEP_SIZE), C(FALLOC_FL_PUNCH_HOLE), C(FALLOC_FL_ZERO_RANGE), C(FALLOC_FL_COLLAPSE_RANGE),
	C(FALLOC_FL_INSERT_RANGE), C(FALLOC_FL_UNSHARE_RANGE),
	C(POSIX_FADV_NORMAL), C(POSIX_FADV_SEQUENTIAL), C(POSIX_FADV_DONTNEED), C(SYNC_FILE_RANGE_WRITE),
	C(PROT_NONE), C(PROT_READ), C(PROT_WRITE), C(PROT_EXEC), C(MAP_SHARED), C(MAP_PRIVATE), C(MAP_SHARED_VALIDATE),
	C(MAP_FIXED), C(MAP_POPULATE), C(MAP_NORESERVE), C(MS_SYNC), C(MS_ASYNC), C(MS_INVALIDATE),
	C(UTIME_NOW), C(UTIME_OMIT),
	C(S_IFREG), C(S_IFDIR), C(S_IFIFO), C(S_IFCHR), C(S_IFBLK), C(S_IFSOCK),
	C(_PC_NAME_MAX), C(_PC_PATH_MAX), C(_PC_LINK_MAX), C(_PC_NO_TRUNC), C(_PC_CHOWN_RESTRICTED), C(_PC_FILESIZEBITS),
	C(_PC_PIPE_BUF), C(_PC_VDISABLE), C(_PC_2_SYMLINKS), C(_PC_SYNC_IO), C(_PC_MAX_CANON), C(_PC_SYMLINK_MAX),
	C(_IOFBF), C(_IOLBF), C(_IONBF),
	C(CLOSE_RANGE_CLOEXEC),
	C(POLLIN), C(POLLOUT), C(POLLPRI), C(EPOLL_CTL_ADD),
	C(FIONREAD), C(TIOCGWINSZ), C(FICLONE), C(FS_IOC_GETFLAGS), C(FIGETBSZ), C(FIOCLEX), C(FIONCLEX), C(FIONBIO), C(FIOASYNC),
	C(O_SYNC),
	C(FTS_PHYSICAL), C(FTS_LOGICAL), C(FTS_NOCHDIR), C(FTS_NOSTAT), C(FTS_SEEDOT), C(FTS_COMFOLLOW), C(FTS_XDEV), C(FTS_SKIP), C(FTS_FOLLOW), C(FTS_AGAIN),
	C(XATTR_CREATE), C(XATTR_REPLACE),
	C(INT_MAX), C(INT64_MAX), C(INT64_MIN), C(UINT_MAX),
};

/* constant returns the value of a name; without one it lists them all. */
long long constant(const char *name, size_t n, bool *known)
{
	for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
		if (name == NULL) {
			printf("%s %lld\n", constants[i].name, constants[i].value);
		} else if (strlen(constants[i].name) == n && memcmp(constants[i].name, name, n) == 0) {
			*known = true;
			return constants[i].value;
		}
	}
	if (known != NULL)
		*known = false;
	return 0;
}
