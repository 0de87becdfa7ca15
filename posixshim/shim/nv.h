/*
 * libnvmecr.so, the library that is preloaded into every process of a job. It interposes the C library's file calls.
 * Calls on files of a mount of nvmecr go to the Go runtime, which this library loads when the first such call is made.
 * All other calls go to the C library. No policy lives here: what a call does to a file is decided in Go (package posixshim).
 *
 * Words:
 *   ours      said of a path, descriptor, stream or mapping: it belongs to a file of a mount, not to a file of the kernel
 *   runtime   the Go library libnvmecr-FLAVOUR.so, loaded once in a process; rt_NAME is its function NAME
 *   inside    said of a thread: it is in a call of the runtime, or of another process's runtime (remote.c)
 *   server    another process whose runtime makes calls for this one: its parent, nvmecr serve, or a process of the same rank
 *   outside   said of a path: it begins in a mount, and a symbolic link or ".." leads it out
 *   view      the FUSE file system by which nvmecr serve shows the mount to the kernel (view.c)
 *
 * The wrappers are generated from calls.txt (calls_gen.c). A wrapper asks nv_handle_of or nv_route whether the call is ours.
 * It then calls the real function, REAL(name), or the runtime, directly or through a function of these folders.
 * A folder uses only itself and the folders below it in this list (structure_test.go):
 *
 *   calls/     the wrappers; system calls by number: syscall(2)
 *   process/   start before main, signals, fork, exec, exit
 *   files/     descriptors, names, directories, streams, mappings, locks, poll, aio; inheritance by children
 *   route/     which paths are ours: mounts, working directory, view; repeating a call in another process
 *   remote/    calls that a server makes for this process
 *   runtime/   loading, entering and leaving the Go runtime; its threads and fault signals
 *   base/      shared state, lookup of real functions, the map of descriptors, messages
 *
 * Rules: A call on a descriptor that is not ours costs one comparison or array load before the real call. It takes no lock,
 * allocates nothing and does not enter Go, so a signal handler may make it. errno changes only when a call fails.
 * A call that is ours and cannot be served fails; it never reaches a file elsewhere.
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

/* A handle names an open file description of the runtime. 0 is no handle. As the start of a path, a number below NV_MOUNTS
 * is the root of the mount of that number. */
typedef int64_t nv_handle;

/* The handle of a descriptor that a forked child has inherited, and whose file its parent could not share. */
#define NV_LOST ((nv_handle)-2)

/* The handle of a descriptor that the runtime uses itself. Calls of the application on it fail with EBADF, so that a
 * program that closes all descriptors does not close it. */
#define NV_RUNTIME_OWNED ((nv_handle)-3)

/* A handle of a server has the server's index in the table of servers (remote.c) in bits that the runtime does not use.
 * Index 0 is this process. */
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

/* A path of ours, and where it begins. It lives on the stack of the wrapper. */
struct nv_path_at {
	nv_handle dir;        /* the directory that path is relative to, or the number of a mount */
	const char *path;     /* the rest of the path, in the caller's memory */
	bool outside;         /* the runtime has found that the path leads out of the mount; nv_reroute says where to */
	bool signals_blocked; /* until nv_reroute or nv_go_outside unblocks them */
	int descriptor;       /* the descriptor that a server has sent with the handle of an open file */
	unsigned hops;        /* how often the path has led out of a mount and into one again */
	unsigned redirects;   /* how often the call was repeated in another process */
};

struct nv_dir;

#define NV_CALL(name) __asm__(name) __attribute__((visibility("default")))
#define NV_ALIAS(name) __attribute__((alias(name)))

/* ---- descriptors ---- */

/* Descriptors from NV_FDS on cannot be ours: open fails with EMFILE instead. */
#define NV_FDS (1 << 20)

/* The map of descriptors: nv_fds[fd] is the handle of a descriptor of ours, and 0 for all others. The thread that has just
 * received the number from the kernel sets the slot; the thread that closes the number clears the slot first. So a slot has one
 * writer at a time. A reader that races with a close sees the handle or 0. Pages that no descriptor needs are never touched. */
extern _Atomic nv_handle nv_fds[NV_FDS];

/* One more than the highest descriptor that was ever ours; at most NV_FDS. It only grows. A program without such
 * descriptors reads only this, and does not touch the map. */
extern _Atomic unsigned nv_fds_end;

static inline nv_handle nv_handle_of(int fd)
{
	if ((unsigned)fd >= atomic_load_explicit(&nv_fds_end, memory_order_acquire))
		return 0;
	return atomic_load_explicit(&nv_fds[fd], memory_order_acquire);
}

/* nv_callers_handle is nv_handle_of for the calling thread: descriptors of the runtime are ordinary ones to threads and
 * libraries of the runtime. */
bool nv_in_runtime(void);
static inline nv_handle nv_callers_handle(int fd)
{
	nv_handle h = nv_handle_of(fd);

	return __builtin_expect(h == NV_RUNTIME_OWNED, 0) && nv_in_runtime() ? 0 : h;
}

int nv_open(struct nv_path_at *at, int flags, mode_t mode);
void nv_drop_descriptors(int server); /* in a forked child; server has the files of its parent, 0: no process has */
void nv_adopt(int fd, nv_handle h);
void nv_replace_placeholders(nv_handle h, int stand_in);
void nv_restore_placeholders(void);
void nv_transfer_handles(int server);
nv_own nv_own_descriptor;
bool nv_loading(void);
void nv_set_handle(int fd, nv_handle h);
void nv_reserve_low(void);
void nv_free_low(void);
void nv_mark_runtime_owned(int fd);
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

/* ---- the environment as it was when the process started ---- */

const char *nv_save_environment(const char *name);
const char *nv_initial_env(const char *name);
const char *nv_environment(size_t *n);

/* ---- the runtime ---- */

/* The state of this thread. */
enum nv_state {
	NV_OUT,    /* it has not called the runtime of this process yet */
	NV_READY,  /* it has */
	NV_INSIDE, /* it is loading or calling a runtime: every call that it makes is the real one */
};

extern __thread enum nv_state nv_state __attribute__((tls_model("initial-exec")));

/* The runtime puts here where a path leads that is outside, or the number of the server to ask. Calls of a signal handler
 * overwrite it. */
extern __thread char nv_outside[NV_PATH] __attribute__((tls_model("initial-exec")));

/* The state before nv_enter, which nv_leave restores. */
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

#define NV_MAX_REDIRECTS 600 /* of one call; every second or third takes 5 ms while the other process is ending */

extern _Atomic int nv_default_server;
extern _Atomic uint64_t nv_host;
extern __thread int nv_remote_descriptor __attribute__((tls_model("initial-exec")));

int nv_add_server(uint64_t number);
int nv_host_server(void);
bool nv_served(void); /* this process has had a server */
void nv_drop_connections(void);
void nv_connect(nv_handle h); /* in a forked child */
nv_handle nv_shared_handle(int fd);
bool nv_is_sharing_socket(int fd);
bool nv_enter_remote(struct nv_visit *visit);
bool nv_redirect(struct nv_visit *visit, int64_t result, struct nv_path_at *at, struct nv_path_at *also);
void nv_begin_relay(int fd);
void nv_share_all(void);
void nv_init_descriptors(void);
void nv_hand_over(void);
void nv_before_exec(void);
bool nv_passes_files(bool local);
void nv_pass_by_view(void);
int nv_exec_failed(void);
int nv_parent_server(bool shared);

/* A page that the kernel zeroes in a child (MADV_WIPEONFORK), whether fork, _Fork or clone made it. nv_begin_child sets
 * kept again. */
struct nv_fork_mark {
	int kept;
} __attribute__((aligned(4096)));

extern struct nv_fork_mark nv_fork_mark;
extern bool nv_detects_fork;
void nv_detect_fork(void);

/* nv_unnoticed_child says that this is a forked child in which nv_begin_child has not run yet. */
static inline bool nv_unnoticed_child(void)
{
	return nv_detects_fork && !nv_fork_mark.kept;
}

/* nv_must_not_enter sets errno and returns true where the runtime cannot be called: in a handler of a fault signal that has
 * interrupted the runtime (EDEADLK), and in a child whose first call on our files comes from inside libc's stdio (EIO). */
static inline bool nv_must_not_enter(void)
{
	int error = nv_state == NV_INSIDE ? EDEADLK : nv_unnoticed_child() ? EIO : 0;

	if (error != 0)
		errno = error;
	return error != 0;
}

/* nv_is_mount says that dir is the number of a mount, whose root a path then begins at. */
static inline bool nv_is_mount(nv_handle dir)
{
	return dir >= 0 && dir < NV_MOUNTS;
}

/* nv_path_server returns the server for a call on a path that begins at dir; 0 is this process. */
static inline int nv_path_server(nv_handle dir)
{
	return nv_is_mount(dir) ? atomic_load_explicit(&nv_default_server, memory_order_relaxed) : nv_server(dir);
}

/* nv_paths_server returns the server for a call on two paths; -1 if they are open files of different processes. */
static inline int nv_paths_server(nv_handle a, nv_handle b)
{
	if (!nv_is_mount(a) && !nv_is_mount(b) && nv_server(a) != nv_server(b))
		return -1;
	return nv_path_server(nv_is_mount(a) ? b : a);
}

/* nv_enter_at enters the runtime of server. */
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

/* ---- RLIMIT_FSIZE ---- */

extern _Atomic int64_t nv_fsize; /* negative: not known */
int64_t nv_query_file_limit(void);
void nv_invalidate_file_limit(void);
long nv_file_limit_set(long result);
int nv_file_too_large(void);

/* nv_file_limit is RLIMIT_FSIZE of this process. */
static inline int64_t nv_file_limit(void)
{
	int64_t limit = atomic_load_explicit(&nv_fsize, memory_order_relaxed);

	return __builtin_expect(limit >= 0, 1) ? limit : nv_query_file_limit();
}

int nv_within_limits(void);
/* The result of loading the runtime: LOAD_NONE, LOAD_DONE, or the errno with which it failed. The thread that loads the
 * runtime writes it once; nv_forget_runtime sets it to LOAD_IN_PARENT in a forked child. */
enum { LOAD_IN_PARENT = -2, LOAD_NONE = -1, LOAD_DONE = 0 };
extern _Atomic int nv_load_result;

/* nv_needs_server says that this process cannot load the runtime: nv_forget_runtime. */
static inline bool nv_needs_server(void)
{
	return nv_load_result == LOAD_IN_PARENT;
}

/* nv_loaded says that the runtime has been loaded in this process. */
static inline bool nv_loaded(void)
{
	return atomic_load_explicit(&nv_load_result, memory_order_acquire) == LOAD_DONE;
}
void nv_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
int nv_unsupported(const char *call);
void *nv_resolve_real(unsigned index);
void nv_resolve_signal_calls(void);
FILE **nv_standard_stream(int fd);

/* A program that does not use a mount pays for each page of the library that is touched. Code and variables that
 * every program needs, before main or for each path, are therefore in sections of their own. Tables of names are arrays of
 * characters: pointers would be relocated in each process. Tables have no addresses of functions of other libraries: the
 * dynamic linker would look those up in each process. */
#define NV_NAME 48 /* bytes of a name */
#define NV_EARLY_CODE __attribute__((section(".text.startup")))
#define NV_EARLY __attribute__((section(".early")))
#define NV_LARGE __attribute__((common))

static inline int nv_error(int error)
{
	errno = error;
	return -1;
}

/* nv_near_null says that a pointer is NULL, or an offset from NULL. Such a pointer is EFAULT, as in the kernel. Other bad
 * pointers to names and structures raise SIGSEGV; the runtime finds bad pointers to buffers (fault.go). */
static inline bool nv_near_null(const void *p)
{
	return (uintptr_t)p < 4096;
}

#include "calls_gen.h"

/* REAL(name) is the function of the C library that our wrapper of that name hides. */
#define NV_INDEX(name) (offsetof(struct nv_real, name) / sizeof(void *))
#define REAL(name)                                          \
	(__builtin_expect(nv_real.name != NULL, 1)          \
		 ? nv_real.name                             \
		 : (__typeof__(nv_real.name))nv_resolve_real(NV_INDEX(name)))

/* nv_check ends the process if a buffer is too small, as the C library's fortified calls do. */
#define nv_check(fits) ((void)((fits) || (nv_overflow(), 0)))
void nv_overflow(void) __attribute__((noreturn));

/* nv_checked ignores the flag of the fortified printf family. */
#define nv_checked(flag) ((void)(flag))

/* ---- routing ---- */

extern bool nv_mounted;          /* NVMECR_MOUNT names a mount */
extern const char *nv_mount;     /* the path of the first mount */
extern const char *nv_view;      /* the directory of its view; NULL: the kernel has no view */

bool nv_route(int dirfd, const char *path, struct nv_path_at *at);
bool nv_reroute_outside(struct nv_path_at *at);
void nv_go_outside(struct nv_path_at *at, char *buf);
int nv_cross_device(int dirfd, const char *path);

/* nv_reroute says whether a call has to be repeated, because the path is outside. If it returns false and at->outside is set,
 * then at->path is a path of the kernel. The caller copies that with nv_go_outside and makes the real call. */
static inline bool nv_reroute(struct nv_path_at *at)
{
	return __builtin_expect(at->outside | at->signals_blocked, 0) && nv_reroute_outside(at);
}
bool nv_init_mounts(const char *first); /* before main */
void nv_init_umask(void);             /* before main */
mode_t nv_umasked(mode_t mode);
mode_t nv_umask(mode_t mask);
int nv_credentials_changed(int result);
void nv_init_cwd(void);
void nv_drop_cwd(void); /* in a forked child */
nv_handle nv_cwd(void);
nv_handle nv_cwd_peek(void);
void nv_cwd_redirected(void);
bool nv_cwd_in_view(void);
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

/* A directory stream of ours. It begins with a magic number where libc's DIR has a descriptor and a lock. Those never have
 * these values. */
#define NV_DIR_MAGIC UINT64_C(0x7269642d72636d76)

struct nv_dir {
	uint64_t magic;
	int fd;
	size_t next;   /* offset in buf of the next entry */
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
void nv_seekdir(struct nv_dir *dir, long position);

/* ---- streams ---- */

FILE *nv_fopen(struct nv_path_at *at, const char *mode);
FILE *nv_fdopen(int fd, nv_handle h, const char *mode);
int nv_vdprintf(int fd, const char *format, va_list ap) __attribute__((format(printf, 2, 0)));
int nv_fclose(FILE *stream);
FILE *nv_freopen(const char *name, const char *mode, FILE *stream);
void nv_update_stdin(void);
extern FILE *nv_stdin_cookie, *nv_stdin_libc; /* NULL unless descriptor 0 is ours */

/* nv_input returns the stream to read from when a program reads from stream (stdio.c). */
static inline FILE *nv_input(FILE *stream)
{
	return __builtin_expect(stream != NULL && stream == nv_stdin_libc, 0) ? nv_stdin_cookie : stream;
}

/* nv_cookie says that fopencookie has made a stream, as it has all that are ours. Such streams have no data for wide
 * characters. */
static inline bool nv_cookie(const FILE *stream)
{
	return stream->_wide_data == (struct _IO_wide_data *)-1L;
}

size_t nv_fread(void *buf, size_t size, size_t n, FILE *stream);
size_t nv_fread_chk(void *buf, size_t have, size_t size, size_t n, FILE *stream);

bool nv_wide_allowed(FILE *stream);

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
long nv_io_submit(aio_context_t context, long n, struct iocb **list); /* returns -errno, as that of libaio does */

/* ---- MPI (mpiwrap/interpose) ---- */

void nv_mpi_ready(void);  /* the application's MPI_Init has returned */
void nv_mpi_ending(void); /* the application has called MPI_Finalize, which is made next */

#include "process.h"

#endif
