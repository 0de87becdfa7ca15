/* What the shim does for signals, processes and threads: a part of nv.h. */
#ifndef NV_PROCESS_H
#define NV_PROCESS_H

#include "kernel.h"

/* ---- signals, processes, exit ---- */

int nv_sigaction(int signum, const struct sigaction *act, struct sigaction *old);
sighandler_t nv_signal(int signum, sighandler_t handler);
sighandler_t nv_sysv_signal(int signum, sighandler_t handler);
pid_t (*nv_vfork(void))(void);
int nv_execve(const char *path, char *const argv[], char *const envp[]);
int nv_execvpe(const char *file, char *const argv[], char *const envp[]);
int nv_fexecve(int fd, char *const argv[], char *const envp[]);
int nv_execveat(int dirfd, const char *path, char *const argv[], char *const envp[], int flags);
int nv_execl(const char *path, const char *arg, va_list ap);
int nv_execle(const char *path, const char *arg, va_list ap);
int nv_execlp(const char *file, const char *arg, va_list ap);
long nv_syscall(long number, va_list ap);
bool nv_raw(long number, const long *a, long *result);
int nv_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
		   const posix_spawnattr_t *attr, char *const argv[], char *const envp[]);
int nv_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
		    const posix_spawnattr_t *attr, char *const argv[], char *const envp[]);
int nv_system(const char *command);
void nv_quit(int status);
FILE *nv_popen(const char *command, const char *mode);
void nv_openlog(const char *name, int options, int facility);
int nv_fflush(FILE *stream);
bool nv_own_memory(void);    /* false in a vfork child */
void nv_take_memory(pid_t process);
void nv_prepare_process(void);
void nv_begin_child(void);

/* nv_notice_fork is called first in each interposed call. It keeps a child from going on with what is its
 * parent's: the Go runtime, without its threads, and connections. */
static inline void nv_notice_fork(void)
{
	if (__builtin_expect(nv_unnoticed_child(), 0))
		nv_begin_child();
}

int nv_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg);
void nv_forget_runtime(void); /* in a forked child */
void nv_prepare_exit(void);
void nv_begin_end(void);
void nv_await_end(void);     /* after a call that failed */
void nv_forget_end(void);    /* in a forked child */

/* ---- the view of the mount that the kernel has ---- */

/* What the kernel is to do with a file. NV_SEARCH is to execute it if it is there. */
enum nv_use { NV_EXECUTE, NV_SEARCH, NV_LOAD, NV_OPEN };

const char *nv_by_kernel(int dirfd, const char *path, enum nv_use use, char buf[NV_PATH]);
const char *nv_file_by_kernel(nv_handle h, enum nv_use use, char buf[NV_PATH]);
int nv_open_in_view(nv_handle h);
const char *nv_below_view(const char *path, bool *own);
void *(*nv_dlopen(const char *path))(const char *path, int mode);
int nv_add_open(posix_spawn_file_actions_t *actions, int fd, const char *path, int flags, mode_t mode);
int nv_add_chdir(posix_spawn_file_actions_t *actions, const char *path);

/* ---- signals ---- */

void nv_signal_stack(void);
void nv_take_faults(void);
bool nv_fault_action(int signum, const struct sigaction *act, struct sigaction *old);
void nv_forget_actions(void); /* in a forked child */
int nv_runtimes_action(int signum, const struct sigaction *act, struct sigaction *old);

/* nv_block_signals blocks all signals but those of faults. A handler then runs when the
 * call is done, where the kernel puts it. What was blocked before is for nv_unblock_signals. */
static inline void nv_block_signals(uint64_t *before)
{
	const uint64_t faults = UINT64_C(1) << (SIGSEGV - 1) | UINT64_C(1) << (SIGBUS - 1) | UINT64_C(1) << (SIGFPE - 1);
	const uint64_t mask = ~faults;

	nv_kernel(SYS_rt_sigprocmask, SIG_SETMASK, &mask, before, sizeof mask);
}

static inline void nv_unblock_signals(uint64_t before)
{
	nv_kernel(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
}

/* nv_hold and nv_let_go enclose what no handler may come in the middle of. They nest. */
void nv_hold(void);
void nv_let_go(void);

/* ---- the runtime's threads ---- */

#define NV_THREAD "nvmecr" /* what they are called */

bool nv_runtimes(void);
void nv_init_thread(void);
void nv_forget_threads(void); /* in a forked child */

#endif
