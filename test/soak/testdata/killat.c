/*
 * killat N COMMAND...: kills COMMAND instead of letting it make its Nth call
 * that sends or writes something, of any thread. Its memory dies with it, so
 * for everybody else that is as good as a kill at any instruction between this
 * call and the one before. Calls count from where COMMAND sets its name to
 * "count". Exits as COMMAND did, or with 137 if it was killed.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
/* Behind sys/ptrace.h, which it would otherwise break. */
#include <linux/ptrace.h>

static pid_t child;
static long left;
static int counting;

static void fail(const char *what)
{
	perror(what);
	if (child > 0)
		kill(child, SIGKILL);
	exit(1);
}

/* The calls at which we are asked: prctl, and those that count. */
static const int calls[] = {
	SYS_prctl, SYS_write, SYS_writev, SYS_pwrite64, SYS_pwritev, SYS_sendto, SYS_sendmsg, SYS_sendmmsg, SYS_connect, SYS_shutdown,
};

enum { CALLS = sizeof calls / sizeof calls[0] };

/* A filter, so that all other calls take no longer than they do. */
static void filter(void)
{
	struct sock_filter code[CALLS + 3] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
	struct sock_fprog all = { CALLS + 3, code };

	for (int i = 0; i < CALLS; i++)
		code[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], CALLS - i, 0);
	code[CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	code[CALLS + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) != 0)
		fail("seccomp");
}

/* Whether the thread, which is about to make one of these calls, is to die. */
static int last_call(pid_t thread)
{
	struct ptrace_syscall_info info;
	char name[sizeof(long)];

	if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof info, &info) <= 0)
		return 0;
	if (info.seccomp.nr != SYS_prctl)
		return counting && --left == 0;
	if (info.seccomp.args[0] == PR_SET_NAME) {
		long word = ptrace(PTRACE_PEEKDATA, thread, (void *)info.seccomp.args[1], NULL);
		memcpy(name, &word, sizeof name);
		counting = counting || strncmp(name, "count", 6) == 0;
	}
	return 0;
}

int main(int argc, char **argv)
{
	int status;

	if (argc < 3 || (left = atol(argv[1])) < 1) {
		fprintf(stderr, "usage: killat N COMMAND...\n");
		return 2;
	}
	child = fork();
	if (child == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
			fail("ptrace");
		raise(SIGSTOP);
		filter();
		execvp(argv[2], argv + 2);
		fail(argv[2]);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		fail("fork");
	if (ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_EXITKILL | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC) != 0)
		fail("ptrace");
	ptrace(PTRACE_CONT, child, NULL, NULL);
	for (pid_t thread; (thread = waitpid(-1, &status, __WALL)) > 0;) {
		long signal = 0;
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (thread == child)
				return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			continue;
		}
		if (status >> 16 == PTRACE_EVENT_SECCOMP) {
			if (last_call(thread))
				kill(child, SIGKILL);
		} else if (status >> 16 == 0 && WSTOPSIG(status) != SIGSTOP) {
			signal = WSTOPSIG(status);
		}
		ptrace(PTRACE_CONT, thread, NULL, signal); /* it may be gone */
	}
	fail("waitpid");
}
