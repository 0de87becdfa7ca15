/* Signals, processes, threads, and the view: a part of nv.h. */
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
enum nv_variadic { NV_EXECL, NV_EXECLE, NV_EXECLP };
int nv_execl(enum nv_variadic call, const char *path, const char *arg, va_list ap);
long nv_syscall(long number, va_list ap);
bool nv_raw(long number, const long *a, long *result);
int nv_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
		   const posix_spawnattr_t *attr, char *const argv[], char *const envp[]);
int nv_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
		    const posix_spawnattr_t *attr, char *const argv[], char *const envp[]);
void nv_quit(int status);
void nv_openlog(const char *name, int options, int facility);
int nv_fflush(FILE *stream);
bool nv_owns_memory(void); /* false in a child of vfork, which shares its parent's memory */
void nv_claim_memory(pid_t process);
void nv_prepare_process(void);
void nv_begin_child(void);

/* nv_notice_fork is called first in each interposed call. A child must not use its parent's Go runtime, which lacks its
 * threads there, nor its parent's connections. */
static inline void nv_notice_fork(void)
{
	if (__builtin_expect(nv_unnoticed_child(), 0))
		nv_begin_child();
}

int nv_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg);
void nv_forget_runtime(void); /* in a forked child */
void nv_prepare_exit(void);
void nv_begin_exit(void);
void nv_await_exit(void);
void nv_forget_exit(void); /* in a forked child */

/* ---- the view ---- */

/* What the kernel is asked to do with a file. NV_SEARCH is to execute it if it exists. */
enum nv_use { NV_EXECUTE, NV_SEARCH, NV_LOAD, NV_OPEN };

const char *nv_kernel_path(int dirfd, const char *path, enum nv_use use, char buf[NV_PATH]);
const char *nv_kernel_path_of(nv_handle h, enum nv_use use, char buf[NV_PATH]);
int nv_open_in_view(nv_handle h);
const char *nv_path_in_view(const char *path, bool *own);
void *(*nv_dlopen(const char *path))(const char *path, int mode);
int nv_add_open(posix_spawn_file_actions_t *actions, int fd, const char *path, int flags, mode_t mode);
int nv_add_chdir(posix_spawn_file_actions_t *actions, const char *path);

/* ---- signals ---- */

void nv_signal_stack(void);
void nv_install_fault_handlers(void);
bool nv_fault_action(int signum, const struct sigaction *act, struct sigaction *old);
void nv_forget_actions(void); /* in a forked child */
int nv_runtime_sigaction(int signum, const struct sigaction *act, struct sigaction *old);

/* nv_block_signals blocks all signals of this thread but SIGSEGV, SIGBUS and SIGFPE. Handlers run after nv_unblock_signals,
 * which is given the mask in before. */
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

/* nv_begin_critical and nv_end_critical enclose what a signal handler of this thread must not interrupt. They nest. */
void nv_begin_critical(void);
void nv_end_critical(void);

/* ---- the runtime's threads ---- */

#define NV_THREAD "nvmecr" /* their name */

void nv_init_thread(void);

#endif
