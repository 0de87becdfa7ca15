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
void nv_prepare_process(void);
int nv_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg);
void nv_forget_runtime(void); /* in a forked child */
void nv_prepare_exit(void);
void nv_finish(void);        /* at the end of the process */
void nv_await_end(void);     /* after a call that failed */
void nv_forget_end(void);    /* in a forked child */
void nv_outlast(void);
void nv_creates_thread(bool done);
void nv_prepare_first_thread(void);
void nv_first_thread(void);  /* of a forked child */

/* ---- file actions ---- */

int nv_add_open(posix_spawn_file_actions_t *actions, int fd, const char *path, int flags, mode_t mode);
int nv_add_close(posix_spawn_file_actions_t *actions, int fd);
int nv_add_dup2(posix_spawn_file_actions_t *actions, int fd, int to);
int nv_add_chdir(posix_spawn_file_actions_t *actions, const char *path);
int nv_add_fchdir(posix_spawn_file_actions_t *actions, int fd);
int nv_add_closefrom(posix_spawn_file_actions_t *actions, int from);
int nv_add_terminal(posix_spawn_file_actions_t *actions, int fd);
int nv_destroy_actions(posix_spawn_file_actions_t *actions);

/* What is found and opened here for a child. */
struct nv_spawn_files {
	const posix_spawn_file_actions_t *given;
	const posix_spawn_file_actions_t *actions; /* for the child */
	posix_spawn_file_actions_t own;
	int *opened; /* NULL: nothing is opened here */
	size_t count;
};

int nv_open_spawn_files(struct nv_spawn_files *s, const posix_spawn_file_actions_t *given);
void nv_close_spawn_files(struct nv_spawn_files *s);

/* What a path is where the actions have led. */
struct nv_spawn_path {
	int dir;
	const char *path;
	char room[NV_PATH];
};

bool nv_spawn_route(const struct nv_spawn_files *s, const char *path, struct nv_spawn_path *p, struct nv_place *at);

/* ---- programs of the mount ---- */

/* As many scripts one after the other does the kernel look at, so much of each. */
#define NV_SCRIPTS 5
#define NV_HEAD 256

/* So much room is in front of a program's arguments for those that scripts add. */
#define NV_MORE_ARGS (2 * NV_SCRIPTS + 2)

/* What is to be executed. */
struct nv_program {
	int fd;                          /* a copy in memory; -1: */
	const char *path;                /* it is elsewhere */
	bool ours;                       /* something of the mount leads to it */
	char *const *argv;
	char head[NV_SCRIPTS + 1][NV_HEAD + 1]; /* first lines of scripts */
	char elsewhere[NV_PATH];         /* what path may be */
};

size_t nv_room_for(char *const argv[]);
int nv_find_program(struct nv_program *p, struct nv_place *at, int flags, const char *name, char *const argv[],
		    const char **room);
int nv_find_script(struct nv_program *p, const char *path, char *const argv[], const char **room);
int nv_drop_program(struct nv_program *p);
void nv_name_process(void); /* of a program of the mount */
int nv_memory_file(const char *path);
int nv_copy_rest(nv_handle h, int to, off_t off);

/* ---- libraries of the mount ---- */

void *(*nv_dlopen(const char *path))(const char *path, int mode);
void *(*nv_dlmopen(Lmid_t space, const char *path))(Lmid_t space, const char *path, int mode);
void *nv_load_library(const char *path, int mode);

/* So many libraries that one needs are looked for. */
#define NV_NEEDED 128

/* A library that is being loaded. */
struct nv_loading {
	const struct nv_loading *outer; /* who needs it */
	const char *path;               /* it is in the directory of that */
	const char *rpath;
	uint64_t ino;
	unsigned count;
	void *held[NV_NEEDED]; /* what it needs */
};

bool nv_load_needed(struct nv_loading *l, int copy);
void nv_let_needed(struct nv_loading *l);
char *nv_look_for(const char *name);
bool nv_present(const char *name);

/* ---- signals ---- */

void nv_signal_stack(void);
void nv_take_faults(void);
bool nv_fault_action(int signum, const struct sigaction *act, struct sigaction *old);
void nv_forget_actions(void); /* in a forked child */
void nv_runtimes_action(int signum, const struct sigaction *act, struct sigaction *old);

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

void nv_choose_cpus(void);
void nv_chosen_cpus(void);
bool nv_runtimes(void);
bool nv_runtimes_thread(void *(*start)(void *));
void nv_settle_thread(void);

#endif
