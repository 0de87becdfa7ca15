/*
 * libnvmecr.so, the preloaded library: it decides whether a path or descriptor
 * is ours, and hands what is ours to the Go runtime, which it loads on first
 * need. No policy lives here.
 *
 * The wrappers are generated from calls.txt (calls_gen.c). They route through
 * nv_ours and nv_route, and call either the real function, REAL(name), or the
 * runtime, rt_name, directly or through a function of these folders. Each calls only itself
 * and those below it (structure_test.go):
 *
 *   calls/     the wrappers (calls_gen.c), calls by number: syscall(2)
 *   process/   before main, signals and fork, executing programs, the end
 *   files/     descriptors, names, directories, streams, mappings, locks, waiting;
 *              what children and nvmecr serve are given of them
 *   route/     is a path ours: the mount, the working directory, the kernel's view,
 *              going on in another process
 *   remote/    calls that another process makes for this one
 *   runtime/   loading, entering and leaving the Go runtime; its threads, its signals of faults
 *   base/      what all of them use: state, real functions, slots of descriptors, messages
 *
 * Rules: a call on a descriptor that is not ours is a comparison, or an array load,
 * and the real call: no lock, no allocation, no Go, so it may be made from a signal
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
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <syslog.h>
#include <termios.h>
#include <time.h>
#include <utime.h>
#include <wchar.h>

#include "wire.h"

/* A handle names an open file description of the runtime; 0 is none. Where a path begins those below NV_MOUNTS are the
 * roots of the mounts. */
typedef int64_t nv_handle;

/* NV_LOST is behind a descriptor that a forked child has from its parent, which
 * could not share the file. */
#define NV_LOST ((nv_handle)-2)

/* NV_RUNTIMES is behind a descriptor of the runtime itself: the application,
 * which does not know of it, cannot close it. Every call on it is EBADF. */
#define NV_RUNTIMES ((nv_handle)-3)

/* Handles of another process have its place in the table of servers (remote.c) in
 * bits that are not the runtime's. Place 0 is this process. */
#define NV_SERVERS 4096
#define NV_SERVER_SHIFT 20

static inline int nv_server(nv_handle h)
{
	return h > 0 ? (int)(h >> NV_SERVER_SHIFT) & (NV_SERVERS - 1) : 0;
}

static inline nv_handle nv_remote(nv_handle h, int server)
{
	return h | (nv_handle)server << NV_SERVER_SHIFT;
}

static inline nv_handle nv_local(nv_handle h)
{
	return h > 0 ? h & ~((nv_handle)(NV_SERVERS - 1) << NV_SERVER_SHIFT) : h;
}

/* A place is where a path of ours begins. */
struct nv_path_at {
	nv_handle dir;    /* the directory it is relative to, or the number of a mount */
	const char *path; /* the rest of the path, in the caller's memory */
	bool outside;     /* it leads out of the mount: nv_reroute finds what to go on with */
	bool held;        /* signals are blocked until nv_reroute or nv_go_outside */
	int descriptor;   /* what came with the handle of an open file of another process */
	unsigned hops;    /* how often it has led out and back in */
	unsigned moves;   /* how often another process had to be asked */
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

/* One more than the highest descriptor that ever was ours; at most NV_FDS. A program
 * that has none does not touch the map. */
extern _Atomic unsigned nv_ours_end;

static inline nv_handle nv_ours(int fd)
{
	if ((unsigned)fd >= atomic_load_explicit(&nv_ours_end, memory_order_acquire))
		return 0;
	return atomic_load_explicit(&nv_fds[fd], memory_order_acquire);
}

/* nv_called_with is what a call that is made with fd is about: to libraries of
 * the runtime its descriptors are like any other. */
bool nv_runtimes(void);
static inline nv_handle nv_called_with(int fd)
{
	nv_handle h = nv_ours(fd);

	return __builtin_expect(h == NV_RUNTIMES, 0) && nv_runtimes() ? 0 : h;
}

int nv_open(struct nv_path_at *at, int flags, mode_t mode);
void nv_drop_descriptors(int server); /* in a forked child; server has what was ours */
void nv_adopt(int fd, nv_handle h);
void nv_replace_placeholders(nv_handle h, int stand_in);
void nv_take_back(void);
void nv_give_away(int server); /* it has what was ours */
nv_own nv_own_descriptor;
bool nv_loading(void);
void nv_put(int fd, nv_handle h);
void nv_occupy(void);
void nv_vacate(void);
void nv_own_in_place(int fd);
int nv_low_descriptors(void);
int nv_close(int fd);
int nv_close_stream(FILE *stream, int fd);
void nv_close_quietly(int fd);
int nv_close_range(unsigned first, unsigned last, int flags);
int nv_dup(int fd, nv_handle h);
int nv_dup_to(int fd, int newfd, int flags);
int nv_fcntl(int fd, nv_handle h, int cmd, void *arg);
int nv_ioctl(int fd, unsigned long request);
int nv_fcntl_lock(nv_handle h, int cmd, struct flock *lock);
int nv_flock(nv_handle h, int operation);
int nv_lockf(nv_handle h, int command, off_t length);

/* ---- the environment that the process was started with ---- */

const char *nv_keep_environment(const char *name);
const char *nv_given(const char *name);
const char *nv_environment(size_t *n);

/* ---- the runtime ---- */

/* Where this thread is with the runtime. */
enum nv_state {
	NV_OUT,    /* never called it, or must look again */
	NV_READY,  /* has called it */
	NV_INSIDE, /* is in it, or in loading it: every call is the real one */
};

extern __thread enum nv_state nv_state __attribute__((tls_model("initial-exec")));

/* Paths that lead out of the mount, from the runtime. A handler's calls write to it, too. */
extern __thread char nv_outside[NV_PATH] __attribute__((tls_model("initial-exec")));

/* What nv_leave puts back. */
struct nv_visit {
	int errno_before;
	int cancel_before;
	enum nv_state state_before;
	uint64_t mask_before;
};

bool nv_enter(struct nv_visit *visit);
int64_t nv_leave(struct nv_visit *visit, int64_t result);
int64_t nv_leave_at(struct nv_visit *visit, int64_t result, struct nv_path_at *at);

/* ---- other processes ---- */

#define NV_MOVES 400 /* as often a call is made again elsewhere: 5 ms each if a process is ending */

extern _Atomic int nv_home;
extern __thread int nv_remote_descriptor __attribute__((tls_model("initial-exec")));

int nv_add_server(uint64_t number);
bool nv_served(void); /* another process serves this one, or has */
void nv_drop_connections(void);
void nv_reach(nv_handle h); /* in a forked child */
nv_handle nv_token(int fd);
bool nv_named(int fd);
bool nv_enter_remote(struct nv_visit *visit);
bool nv_redirect(struct nv_visit *visit, int64_t result, struct nv_path_at *at, struct nv_path_at *also);
void nv_arm_relay(int fd); /* a file may have become fd */
void nv_share_all(void); /* before fork, and before a program is executed */
void nv_find_descriptors(void);
void nv_hand_over(void); /* at the end of the process */
void nv_before_exec(void); /* before a program is executed */
int nv_exec_failed(void);
int nv_sharing(bool shared); /* in a forked child: the server that its parent is, if that has shared its files */

/* A page that the kernel empties in a forked child, however that was made. nv_begin_child
 * sets mine again. */
struct nv_emptied {
	int mine;
} __attribute__((aligned(4096)));

extern struct nv_emptied nv_emptied;
extern bool nv_armed;
void nv_arm(void);

/* nv_unnoticed_child says that this is a forked child that still has all that is its parent's. */
static inline bool nv_unnoticed_child(void)
{
	return nv_armed && !nv_emptied.mine;
}

/* nv_must_not_enter sets errno where no call can be made: in a handler of a fault in what the runtime has called, and in a
 * child whose first call is libc's own, of a stream. */
static inline bool nv_must_not_enter(void)
{
	int error = nv_state == NV_INSIDE ? EDEADLK : nv_unnoticed_child() ? EIO : 0;

	if (error != 0)
		errno = error;
	return error != 0;
}

/* nv_root says that a path begins at the root of a mount. */
static inline bool nv_root(nv_handle dir)
{
	return dir >= 0 && dir < NV_MOUNTS;
}

/* nv_path_server is the process that makes a call on a path from an open directory or a root. */
static inline int nv_path_server(nv_handle dir)
{
	return nv_root(dir) ? atomic_load_explicit(&nv_home, memory_order_relaxed) : nv_server(dir);
}

/* nv_paths_server is -1 if the two are of different processes. */
static inline int nv_paths_server(nv_handle a, nv_handle b)
{
	if (!nv_root(a) && !nv_root(b) && nv_server(a) != nv_server(b))
		return -1;
	return nv_path_server(nv_root(a) ? b : a);
}

/* nv_enter_at changes server where the call has to go another way. */
static inline bool nv_enter_at(struct nv_visit *visit, int *server)
{
	if (__builtin_expect(*server == 0, 1))
		return nv_enter(visit);
	if (*server > 0)
		return nv_enter_remote(visit);
	errno = EXDEV;
	return false;
}

static inline bool nv_redirected(struct nv_visit *visit, int64_t result, struct nv_path_at *at, struct nv_path_at *also)
{
	return __builtin_expect(result == NV_REDIRECT || result == NV_GONE, 0) && nv_redirect(visit, result, at, also);
}

/* ---- how large a file may become ---- */

extern _Atomic int64_t nv_fsize; /* negative: to be asked for */
int64_t nv_ask_file_limit(void);
void nv_forget_file_limit(void);
long nv_relimited(long result);
int nv_file_too_large(void);

/* nv_file_limit is RLIMIT_FSIZE of this process. */
static inline int64_t nv_file_limit(void)
{
	int64_t limit = atomic_load_explicit(&nv_fsize, memory_order_relaxed);

	return __builtin_expect(limit >= 0, 1) ? limit : nv_ask_file_limit();
}

int nv_within_limits(void);
/* What became of loading the runtime: LOAD_NONE, LOAD_DONE, or the errno it failed with.
 * Written once for a process; read anywhere. */
enum { LOAD_NONE = -1, LOAD_DONE = 0 };
extern _Atomic int nv_load_result;

/* nv_loaded says that the runtime has been loaded in this process. */
static inline bool nv_loaded(void)
{
	return atomic_load_explicit(&nv_load_result, memory_order_acquire) == LOAD_DONE;
}
void nv_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
int nv_refuse(const char *call);
void *nv_find_real(unsigned index);
void nv_find_signal_calls(void);
FILE **nv_standard_stream(int fd);

/* A program that does nothing with the library pays for each page of it that is
 * touched. What all programs touch lies together: code that runs before main or for each
 * path; variables. Names in tables are arrays, because pointers are relocated in each process.
 * And a symbol of another library whose address is kept, unlike one that is called,
 * is looked up in each. */
#define NV_NAME 48
#define NV_EARLY_CODE __attribute__((section(".text.startup")))
#define NV_EARLY __attribute__((section(".early")))
#define NV_LARGE __attribute__((common))

static inline int nv_error(int error)
{
	errno = error;
	return -1;
}

/* nv_nowhere says that a pointer of the application's is none: NULL, or one that was reckoned from
 * it. Other bad pointers to names and structs are faults; those to buffers the runtime finds (fault.go). */
static inline bool nv_nowhere(const void *p)
{
	return (uintptr_t)p < 4096;
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
extern const char *nv_mount;     /* the path of the first one */
extern const char *nv_view;      /* the directory of its view; NULL: there is none */

bool nv_route(int dirfd, const char *path, struct nv_path_at *at);
bool nv_reroute_outside(struct nv_path_at *at);
void nv_go_outside(struct nv_path_at *at, char *buf);
int nv_cross_device(int dirfd, const char *path);

/* nv_reroute says whether the call has to be made again, because the path has led out of
 * the mount. If it says no and at->outside is still set, then at->path is what to go on with,
 * and the caller copies it with nv_go_outside. */
static inline bool nv_reroute(struct nv_path_at *at)
{
	return __builtin_expect(at->outside | at->held, 0) && nv_reroute_outside(at);
}
bool nv_find_mounts(const char *first); /* before main */
void nv_find_umask(void);             /* before main */
mode_t nv_umasked(mode_t mode);
mode_t nv_umask(mode_t mask);
int nv_credentials_changed(int result);
void nv_find_cwd(void);
void nv_drop_cwd(void); /* in a forked child */
nv_handle nv_working(void);
nv_handle nv_working_now(void);
void nv_working_redirected(void);
bool nv_working_in_view(void); /* the kernel's is there as well */
int nv_chdir(const char *path);
int nv_fchdir(int fd);
char *nv_getcwd(char *buf, size_t n);

/* ---- attributes ---- */

/* NV_SIZED is an array that may be left out, and its size. */
#define NV_SIZED(array, count) (array), (array) == NULL ? 0 : (count) * sizeof *(array)

/* nv_pathconf says what the C library says of a usual file system, which it knows by its type. */
long nv_pathconf(int name);

/* ---- names ---- */

ssize_t nv_readlink(struct nv_path_at *at, char *buf, size_t n);
char *nv_realpath(struct nv_path_at *at, char *resolved);
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

DIR *nv_opendir(struct nv_path_at *at);
DIR *nv_fdopendir(int fd, nv_handle h);
int nv_closedir(struct nv_dir *dir);
struct dirent *nv_readdir(struct nv_dir *dir);
void nv_rewinddir(struct nv_dir *dir);
void nv_seekdir(struct nv_dir *dir, long position);
long nv_telldir(struct nv_dir *dir);

/* ---- streams ---- */

FILE *nv_fopen(struct nv_path_at *at, const char *mode);
FILE *nv_fdopen(int fd, nv_handle h, const char *mode);
int nv_vdprintf(int fd, const char *format, va_list ap) __attribute__((format(printf, 2, 0)));
int nv_fclose(FILE *stream);
FILE *nv_freopen(const char *name, const char *mode, FILE *stream);
void nv_standard_input(void);
extern FILE *nv_input_ours, *nv_input_theirs; /* NULL unless descriptor 0 is ours */

/* nv_input is the stream to read when a program reads stream. */
static inline FILE *nv_input(FILE *stream)
{
	return __builtin_expect(stream != NULL && stream == nv_input_theirs, 0) ? nv_input_ours : stream;
}

/* nv_cookie says that a stream may be ours: it is one that libc has made for
 * fopencookie, which has no wide characters. */
static inline bool nv_cookie(const FILE *stream)
{
	return stream->_wide_data == (struct _IO_wide_data *)-1L;
}

size_t nv_fread(void *buf, size_t size, size_t n, FILE *stream);
size_t nv_fread_chk(void *buf, size_t have, size_t size, size_t n, FILE *stream);

bool nv_wide(FILE *stream);

/* ---- transfers, memory, waiting ---- */

void *nv_mmap(void *addr, size_t n, int prot, int flags, int fd, off_t off);
int nv_munmap(void *addr, size_t n);
int nv_msync(void *addr, size_t n, int flags);
void *nv_mremap(void *addr, size_t n, size_t to, int flags, void *at);
void nv_forget_mappings(void); /* in a forked child */
void nv_release_mappings(void); /* at the end of the process */
int nv_poll(struct pollfd *fds, nfds_t n, int timeout);
int nv_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int nv_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout);
int nv_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask);

/* ---- asynchronous I/O ---- */

int nv_aio_read(struct aiocb *cb);
int nv_aio_write(struct aiocb *cb);
long nv_io_submit(aio_context_t context, long n, struct iocb **list); /* -errno, as of libaio */

/* ---- MPI (mpiwrap/interpose) ---- */

void nv_mpi_ready(void);  /* the application's MPI_Init has returned */
void nv_mpi_ending(void); /* its MPI_Finalize is about to be called */

#include "process.h"

#endif
