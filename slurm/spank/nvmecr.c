/* The SPANK plugin of nvmecr. sbatch, salloc and srun get the option --checkpoint, and Slurm's hooks its value, as
 * SPANK_NVMECR_CHECKPOINT. With the path of nvmecr as its argument it also has `nvmecr slurm step` run on each node beside the tasks of a
 * job that has space: that makes the environment of the tasks one in which the library is preloaded. What anything means is
 * decided there: this is loaded into programs of Slurm, and has no policy. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(nvmecr, 1)

static char request[256];   /* of which "" is none */
static const char *program; /* nvmecr; NULL: not known */

/* Whether nvmecr takes the request. If not it has said why to whoever submits the job. */
static int valid(void)
{
	char *argv[] = { (char *)program, "slurm", "request", request, NULL };
	pid_t pid;
	int status;
	if (posix_spawn(&pid, program, NULL, NULL, argv, environ))
		return 1; /* the host has none: the controller looks, too */
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return 1;
	return status == 0;
}

static int checkpoint(int value, const char *argument, int remote)
{
	(void)value;
	if (snprintf(request, sizeof request, "%s", argument) >= (int)sizeof request || (!remote && program && !valid()))
		return ESPANK_BAD_ARG;
	return ESPANK_SUCCESS;
}

static struct spank_option option = {
	"checkpoint", "nvmf:N[,capacity=SIZE][,name=NAME][,retain=TIME][,strict][,copies[=partner|rs:K+M]][,copies-sync]",
	"checkpoint space on N targets, for the life of the job (nvmecr)", 1, 0, checkpoint,
};

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	program = ac ? av[0] : NULL;
	return spank_option_register(sp, &option);
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	if (!request[0] || spank_remote(sp))
		return ESPANK_SUCCESS;
	return spank_job_control_setenv(sp, "NVMECR_CHECKPOINT", request, 1);
}

/* How long nvmecr may take to start, where a lost node's run has to be waited for, too; and to end before it is left alone. */
enum { START_SECONDS = 120, END_SECONDS = 30 };
/* How much it may say. It runs as the job's user, in memory of the job; this process is root's. */
enum { MOST_BYTES = 16 << 20 };

/* The nvmecr of a step, seen from slurmstepd. */
static struct {
	pid_t pid;    /* 0 if there is none */
	int socket;   /* ours: nvmecr ends when it closes */
	int ready;    /* the tasks have its variables */
	uint32_t out; /* tasks that have ended */
} step;

/* The manifest of the job is there, and the tasks are in no run of nvmecr yet. */
static int wanted(spank_t sp, uint32_t job, uint32_t id, const char *runtime)
{
	char path[4096], run[64];
	snprintf(path, sizeof path, "%s/%u/environment", runtime, job);
	if (id == SLURM_EXTERN_CONT || access(path, F_OK))
		return 0;
	/* The environment of these comes from outside of the job. */
	return id == SLURM_BATCH_SCRIPT || id == SLURM_INTERACTIVE_STEP ||
	       spank_getenv(sp, "NVMECR_RUN", run, sizeof run) == ESPANK_ENV_NOEXIST;
}

/* Becomes nvmecr, as the job's user for good: until here the process could have become root again. */
static void become(int socket, int out, char **argv, char **env)
{
	uid_t user = geteuid();
	gid_t group = getegid();
	sigset_t none;
	sigemptyset(&none);
	if (sigprocmask(SIG_SETMASK, &none, NULL) || dup2(socket, 0) < 0 || dup2(out, 1) < 0 || syscall(SYS_close_range, 3, ~0U, 0) || setsid() < 0 ||
	    (user != getuid() && (seteuid(0) || setresgid(group, group, group) || setresuid(user, user, user))))
		_exit(127);
	execve(argv[0], argv, env);
	_exit(127);
}

/* Reads what nvmecr says until it closes its output, into memory that the caller frees. NULL: it takes too long, or is too much. */
static char *listen_to(int from, size_t *length)
{
	char *text = NULL;
	time_t limit = time(NULL) + START_SECONDS;
	for (size_t size = 0;;) {
		if (size - *length < 4096) {
			char *more = size < MOST_BYTES ? realloc(text, size += 65536) : NULL;
			if (!more)
				break;
			text = more;
		}
		struct pollfd ready = { from, POLLIN, 0 };
		time_t left = limit - time(NULL);
		int n = left > 0 ? poll(&ready, 1, (int)left * 1000) : 0;
		if (n < 0 && errno == EINTR)
			continue;
		ssize_t got = n > 0 ? read(from, text + *length, size - *length) : -1;
		if (got == 0)
			return text;
		if (got < 0)
			break;
		*length += (size_t)got;
	}
	free(text);
	return NULL;
}

/* Gives the tasks what nvmecr says: NAME=VALUE, or NAME of what is to go, and "ready" at the end. */
static int take(spank_t sp, char *text, size_t length)
{
	for (char *at = text, *next; (next = memchr(at, 0, (size_t)(text + length - at))); at = next + 1) {
		char *value = strchr(at, '=');
		if (next + 1 == text + length)
			return !strcmp(at, "ready");
		if (!value) {
			spank_unsetenv(sp, at);
			continue;
		}
		*value++ = 0;
		if (spank_setenv(sp, at, value, 1) != ESPANK_SUCCESS)
			return 0;
	}
	return 0;
}

int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	const char *runtime = ac > 1 ? av[1] : "/run/nvmecr";
	uint32_t job, id;
	char **env, job_text[16], id_text[16];
	int ours[2], out[2];
	if (!program || spank_get_item(sp, S_JOB_ID, &job) || spank_get_item(sp, S_JOB_STEPID, &id) || !wanted(sp, job, id, runtime) ||
	    spank_get_item(sp, S_JOB_ENV, &env))
		return ESPANK_SUCCESS;
	snprintf(job_text, sizeof job_text, "%u", job);
	snprintf(id_text, sizeof id_text, id == SLURM_BATCH_SCRIPT ? "batch" : id == SLURM_INTERACTIVE_STEP ? "interactive" : "%u", id);
	char *argv[] = { (char *)program, "slurm", "step", "--runtime", (char *)runtime, job_text, id_text, NULL };
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ours))
		return ESPANK_ERROR;
	if (pipe2(out, O_CLOEXEC)) {
		close(ours[0]);
		close(ours[1]);
		return ESPANK_ERROR;
	}
	step.socket = ours[0];
	step.pid = fork();
	if (step.pid == 0)
		become(ours[1], out[1], argv, env);
	close(ours[1]);
	close(out[1]);
	size_t length = 0;
	char *text = step.pid > 0 ? listen_to(out[0], &length) : NULL;
	step.ready = text && take(sp, text, length);
	free(text);
	close(out[0]);
	return ESPANK_SUCCESS;
}

/* Gives nvmecr the standard error of this process. */
static void show_errors(void)
{
	char word = 0, space[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec one = { &word, 1 };
	struct msghdr message = { .msg_iov = &one, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof(int));
	*(int *)(void *)CMSG_DATA(rights) = 2;
	sendmsg(step.socket, &message, MSG_NOSIGNAL);
}

/* In the process of a task, before its program. */
int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	int task = 0;
	(void)ac;
	(void)av;
	if (!step.pid)
		return ESPANK_SUCCESS;
	spank_get_item(sp, S_TASK_ID, &task);
	if (task == 0)
		show_errors();
	if (step.ready)
		return ESPANK_SUCCESS;
	/* Without the mount the program would write elsewhere. Whoever wants to know why waits for the end of nvmecr. */
	if (task == 0) {
		struct pollfd end = { step.socket, 0, 0 };
		poll(&end, 1, END_SECONDS * 1000);
	}
	_exit(1);
}

int slurm_spank_task_exit(spank_t sp, int ac, char **av)
{
	uint32_t tasks = 1;
	(void)ac;
	(void)av;
	spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks);
	if (step.pid <= 0 || ++step.out < tasks)
		return ESPANK_SUCCESS;
	shutdown(step.socket, SHUT_WR);
	struct pollfd end = { step.socket, 0, 0 };
	poll(&end, 1, END_SECONDS * 1000);
	close(step.socket);
	waitpid(step.pid, NULL, WNOHANG);
	step.pid = 0;
	return ESPANK_SUCCESS;
}
