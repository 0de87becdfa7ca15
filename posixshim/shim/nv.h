/*
 * libnvmecr.so, the preloaded library: it decides whether a path or descriptor
 * is ours, and hands what is ours to the Go runtime, which it loads on first
 * need. No policy lives here.
 *
 * The wrappers are generated from calls.txt (calls_gen.c). They route through
 * nv_ours and nv_route, and call either the real function, REAL(name), or the
 * runtime, rt_name, directly or through a function of one of these files:
 *
 *   route.c        is a path ours; umask
 *   cwd.c          the working directory
 *   descriptors.c  the map from descriptor to open file description
 *   runtime.c      loading, entering and leaving the Go runtime
 *   exit.c         the end of the process
 *   signals.c      what Go needs of signal handlers and stacks; fork
 *   attributes.c   stat, statfs, chmod, chown, utime and their families
 *   names.c        what is more than one runtime call on names
 *   dirs.c         DIR streams
 *   stdio.c        FILE streams
 *   wait.c         poll and select
 *   aio.c          asynchronous I/O
 *   transfer.c     vectors with flags, mmap, calls that are refused
 *
 * Rules: a call on a descriptor that is not ours is one array load and the
 * real call: no lock, no allocation, no Go, so it may be made from a signal
 * handler. errno changes only when a call fails. Nothing is redirected: what
 * is ours and cannot be served fails.
 */
#ifndef NV_H
#define NV_H

#if !defined(_GNU_SOURCE) || defined(_FORTIFY_SOURCE)
#error compile with -D_GNU_SOURCE -U_FORTIFY_SOURCE; the fortified headers define some of the calls inline
#endif

#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <termios.h>
#include <time.h>
#include <utime.h>

#include "wire.h"

/* A handle names an open file description of the runtime; 0 is none. */
typedef int64_t nv_handle;

/* NV_LOST is behind a descriptor that a forked child has from its parent: the
 * parent's runtime has the file, the child's has never heard of it. */
#define NV_LOST ((nv_handle)-2)

/* NV_RUNTIMES is behind a descriptor of the runtime itself: the application,
 * which does not know of it, cannot close it. Every call on it is EBADF. */
#define NV_RUNTIMES ((nv_handle)-3)

/* A place is where a path of ours begins. */
struct nv_place {
	nv_handle dir;    /* the directory it is relative to; 0 is the mount */
	const char *path; /* the rest of the path, in the caller's memory */
	bool outside;     /* it leads out of the mount: path is what to go on with */
	unsigned hops;    /* how often it has led out and back in */
};

struct nv_dir;

#define NV_CALL(name) __asm__(name) __attribute__((visibility("default")))
#define NV_ALIAS(name) __attribute__((alias(name)))

/* ---- descriptors ---- */

/* Descriptors from NV_FDS on cannot be ours: opening one is EMFILE. */
#define NV_FDS (1 << 20)

/* nv_fds[fd] is the handle behind a descriptor of ours. A slot is filled by
 * whoever has just received the number from the kernel, and emptied before
 * the number is given back, so it has one owner at any time; readers that
 * race with a close see either. Untouched pages cost nothing. */
extern _Atomic nv_handle nv_fds[NV_FDS];

static inline nv_handle nv_ours(int fd)
{
	if ((unsigned)fd >= NV_FDS)
		return 0;
	return atomic_load_explicit(&nv_fds[fd], memory_order_acquire);
}

int nv_open(struct nv_place *at, int flags, mode_t mode);
void nv_lose_descriptors(void); /* in a forked child */
nv_own nv_own_descriptor;
void nv_own_in_place(int fd);
int nv_low_descriptors(void);
int nv_close(int fd);
int nv_close_range(unsigned first, unsigned last, int flags);
void nv_closefrom(int low);
int nv_dup(int fd, nv_handle h);
int nv_dup2(int fd, int newfd);
int nv_dup3(int fd, int newfd, int flags);
int nv_fcntl(int fd, nv_handle h, int cmd, void *arg);
int nv_ioctl(nv_handle h, unsigned long request);
int nv_flock(int operation);
int nv_lockf(int command, off_t length);

/* ---- the runtime ---- */

/* Where this thread is with the runtime. */
enum nv_state {
	NV_OUT,    /* never called it, or must look again */
	NV_READY,  /* has called it */
	NV_INSIDE, /* is in it, or in loading it: every call is the real one */
};

extern __thread enum nv_state nv_state __attribute__((tls_model("initial-exec")));

/* Paths that lead out of the mount, from the runtime. */
extern __thread char nv_outside[NV_PATH] __attribute__((tls_model("initial-exec")));

/* What nv_leave puts back. */
struct nv_visit {
	int errno_before;
	int cancel_before;
};

bool nv_enter(struct nv_visit *visit);
int64_t nv_leave(struct nv_visit *visit, int64_t result);
int64_t nv_leave_at(struct nv_visit *visit, int64_t result, struct nv_place *at);

bool nv_loaded(void); /* the runtime has been loaded in this process */
void nv_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *nv_find_real(unsigned index);

static inline int nv_error(int error)
{
	errno = error;
	return -1;
}

#include "calls_gen.h"

/* REAL(name) is the function that our wrapper of that name hides. */
#define NV_INDEX(name) (offsetof(struct nv_real, name) / sizeof(void *))
#define REAL(name)                                          \
	(__builtin_expect(nv_real.name != NULL, 1)          \
		 ? nv_real.name                             \
		 : (__typeof__(nv_real.name))nv_find_real(NV_INDEX(name)))

/* nv_check ends the process like the C library's own fortified calls do. */
#define nv_check(fits) ((void)((fits) || (nv_overflow(), 0)))
void nv_overflow(void) __attribute__((noreturn));

/* nv_checked ignores what the fortified printf family is told to check. */
#define nv_checked(flag) ((void)(flag))

/* ---- routing ---- */

extern bool nv_mounted;          /* there is a mount: NVMECR_MOUNT is set */
extern const char *nv_mount;     /* its path */

bool nv_route(int dirfd, const char *path, struct nv_place *at);
bool nv_reroute_outside(struct nv_place *at);

/* nv_reroute says whether a path that led out of the mount leads back in, so
 * that the call has to be made again. */
static inline bool nv_reroute(struct nv_place *at)
{
	return __builtin_expect(at->outside, 0) && nv_reroute_outside(at);
}
mode_t nv_umasked(mode_t mode);
mode_t nv_umask(mode_t mask);
void nv_find_cwd(void);
nv_handle nv_working(void);
int nv_chdir(const char *path);
int nv_fchdir(int fd);
char *nv_getcwd(char *buf, size_t n);

/* ---- attributes ---- */

int nv_stat(struct nv_place *at, int follow, struct stat *st);
int nv_fstat(nv_handle h, struct stat *st);
int nv_fstatat(struct nv_place *at, struct stat *st, int flags);
int nv_statx(struct nv_place *at, int flags, unsigned mask, struct statx *stx);
int nv_statfs(struct nv_place *at, struct statfs *st);
int nv_fstatfs(nv_handle h, struct statfs *st);
int nv_statvfs(struct nv_place *at, struct statvfs *st);
int nv_fstatvfs(nv_handle h, struct statvfs *st);
long nv_pathconf(struct nv_place *at, int name);
long nv_fpathconf(nv_handle h, int name);
int nv_faccessat(struct nv_place *at, int mode, int flags);
int nv_chmod(struct nv_place *at, mode_t mode, int follow);
int nv_lchmod(struct nv_place *at, mode_t mode);
int nv_fchmod(nv_handle h, mode_t mode);
int nv_fchmodat(struct nv_place *at, mode_t mode, int flags);
int nv_chown(struct nv_place *at, uid_t uid, gid_t gid, int follow);
int nv_fchown(nv_handle h, uid_t uid, gid_t gid);
int nv_fchownat(struct nv_place *at, uid_t uid, gid_t gid, int flags);
int nv_utime(struct nv_place *at, const struct utimbuf *times);
int nv_utimes(struct nv_place *at, const struct timeval times[2], int follow);
int nv_futimes(nv_handle h, const struct timeval times[2]);
int nv_futimens(nv_handle h, const struct timespec times[2]);
int nv_utimensat(struct nv_place *at, const struct timespec times[2], int flags);

/* ---- names ---- */

int nv_unlinkat(struct nv_place *at, int flags);
int nv_remove(struct nv_place *at);
int nv_linkat(struct nv_place *from, struct nv_place *to, int flags);
int nv_mknod(struct nv_place *at, mode_t type, mode_t mode);
char *nv_realpath(struct nv_place *at, char *resolved);
int nv_mkstemp(char *name, int suffix, int flags);
char *nv_mkdtemp(char *name);

/* ---- directories ---- */

/* Our DIR begins with a magic number where libc's has a descriptor and a
 * lock, which never have these values. */
#define NV_DIR_MAGIC UINT64_C(0x7269642d72636d76)

struct nv_dir {
	uint64_t magic;
	int fd;
	size_t next;   /* of the entries in buf */
	size_t filled; /* bytes in buf */
	long position; /* what telldir returns */
	char buf[32 << 10] __attribute__((aligned(8))); /* struct dirent64s */
};

static inline struct nv_dir *nv_dir_of(DIR *stream)
{
	struct nv_dir *dir = (struct nv_dir *)stream;

	return dir != NULL && dir->magic == NV_DIR_MAGIC ? dir : NULL;
}

DIR *nv_opendir(struct nv_place *at);
DIR *nv_fdopendir(int fd, nv_handle h);
int nv_closedir(struct nv_dir *dir);
struct dirent *nv_readdir(struct nv_dir *dir);
int nv_readdir_r(struct nv_dir *dir, struct dirent *entry, struct dirent **result);
void nv_rewinddir(struct nv_dir *dir);
void nv_seekdir(struct nv_dir *dir, long position);
long nv_telldir(struct nv_dir *dir);
int nv_scandir(struct nv_place *at, struct dirent ***names, int (*filter)(const struct dirent *),
	       int (*compare)(const struct dirent **, const struct dirent **));

int nv_glob(const char *pattern, int flags, int (*error)(const char *path, int error), glob_t *out);

/* ---- streams ---- */

FILE *nv_fopen(struct nv_place *at, const char *mode);
FILE *nv_fdopen(int fd, nv_handle h, const char *mode);
int nv_vdprintf(int fd, const char *format, va_list ap) __attribute__((format(printf, 2, 0)));
FILE *nv_freopen(const char *name, const char *mode, FILE *stream);
void nv_standard(int fd);
void nv_release_streams(void); /* in a forked child */

/* ---- transfers, memory, waiting ---- */

ssize_t nv_preadv2(nv_handle h, const struct iovec *iov, int count, off_t off, int flags);
ssize_t nv_pwritev2(nv_handle h, const struct iovec *iov, int count, off_t off, int flags);
void nv_sync(void);
ssize_t nv_copy_file_range(int in, off64_t *inoff, int out, off64_t *outoff, size_t n, unsigned flags);
ssize_t nv_sendfile(int out, int in, off_t *off, size_t n);
ssize_t nv_splice(int in, off64_t *inoff, int out, off64_t *outoff, size_t n, unsigned flags);
ssize_t nv_tee(int in, int out, size_t n, unsigned flags);
int nv_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
void *nv_mmap(nv_handle h, void *addr, size_t n, int prot, int flags, off_t off);
int nv_poll(struct pollfd *fds, nfds_t n, int timeout);
int nv_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int nv_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout);
int nv_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask);

/* ---- asynchronous I/O ---- */

int nv_aio_read(struct aiocb *cb);
int nv_aio_write(struct aiocb *cb);
int nv_aio_fsync(int operation, struct aiocb *cb);
int nv_aio_cancel(int fd, struct aiocb *cb);
int nv_lio_listio(int mode, struct aiocb *const list[], int n, struct sigevent *event);

/* ---- MPI (mpiwrap/interpose) ---- */

void nv_mpi_ready(void);  /* the application's MPI_Init has returned */
void nv_mpi_ending(void); /* its MPI_Finalize is about to be called */

/* ---- signals, processes, exit ---- */

int nv_sigaction(int signum, const struct sigaction *act, struct sigaction *old);
sighandler_t nv_signal(int signum, sighandler_t handler);
pid_t (*nv_vfork(void))(void);
bool nv_own_memory(void);    /* false in a vfork child */
void nv_prepare_process(void);
bool nv_in_handler(void);
int nv_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg);
int nv_sigaltstack(const stack_t *stack, stack_t *old);
bool nv_signal_stack(void);  /* gives this thread a stack for handlers */
void nv_forget_runtime(void); /* in a forked child */
void nv_prepare_exit(void);  /* called once, when the runtime has been loaded */

#endif
