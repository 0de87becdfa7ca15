/* What the shim does for signals, processes and threads: a part of nv.h. */
#ifndef NV_PROCESS_H
#define NV_PROCESS_H

/* ---- signals, processes, exit ---- */

int nv_sigaction(int signum, const struct sigaction *act, struct sigaction *old);
sighandler_t nv_signal(int signum, sighandler_t handler);
sighandler_t nv_sysv_signal(int signum, sighandler_t handler);
sighandler_t nv_sigset(int signum, sighandler_t handler);
int nv_siginterrupt(int signum, int flag);
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

/* ---- masks of threads ---- */

#define NV_REMASK SIGPROF /* the shim's: masks.c */

void nv_expect_go(const sigset_t *blocked);
void nv_restore_mask(const sigset_t *before);
bool nv_remask(const siginfo_t *info, ucontext_t *context);
bool nv_send_here(int signum, const siginfo_t *info);
void nv_send_remask(void);
bool nv_sent_here(const siginfo_t *info);

/* ---- actions for signals ---- */

void nv_take_signals(void);
struct sigaction nv_action(int signum); /* what the application has asked for */
bool nv_handled(const struct sigaction *act);
bool nv_taken(int signum);
bool nv_taken_action(int signum, const struct sigaction *act, struct sigaction *old);
void nv_forget_actions(void); /* in a forked child */
void nv_before_exec(void);
void nv_before_spawn(void);
void nv_after_exec(void); /* which has failed, or a child has done it */

/* ---- delivery of signals ---- */

extern __thread int nv_deferred __attribute__((tls_model("initial-exec"))); /* how many signals wait for the end of a call */
extern __thread int nv_held __attribute__((tls_model("initial-exec")));     /* how many locks of the shim this thread has */
extern __thread bool nv_at_once __attribute__((tls_model("initial-exec"))); /* none does in what is to be called */

void nv_signalled(int signum, siginfo_t *info, void *context); /* what the kernel calls */
bool nv_gos_action(int signum, const struct sigaction *act, struct sigaction *old);
void nv_deliver(void);

/* nv_hold and nv_let_go enclose what no handler may come in the middle of. */
static inline void nv_hold(void)
{
	nv_held++;
}

static inline void nv_let_go(void)
{
	if (--nv_held == 0 && __builtin_expect(nv_deferred != 0, 0) && nv_state != NV_INSIDE)
		nv_deliver();
}

/* ---- stacks and frames of handlers ---- */

int nv_sigaltstack(const stack_t *stack, stack_t *old);
bool nv_signal_stack(void); /* gives this thread one */
bool nv_has_signal_stack(void);
bool nv_has_own_signal_stack(void);
bool nv_on_signal_stack(uintptr_t address);
void nv_remember_stack(const stack_t *stack);
void nv_doubt_stack(void);
bool nv_moves(const ucontext_t *context, const struct sigaction *act);
void nv_push(const struct sigaction *act, int signum, const siginfo_t *info, ucontext_t *context, const sigset_t *mask);
void nv_call_handler(void (*handler)(int, siginfo_t *, void *), int signum, siginfo_t *info, void *context);
void nv_begin_handler(int signum, siginfo_t *info, void *context, void (*handler)(int, siginfo_t *, void *));
bool nv_in_handler(void);

/* ---- the runtime's threads ---- */

#define NV_THREAD "nvmecr" /* what they are called */

void nv_choose_cpus(void);
void nv_chosen_cpus(void);
bool nv_runtimes(void);
bool nv_runtimes_thread(void *(*start)(void *));
void nv_settle_thread(void);

#endif
