/* The calls that execute programs. This process may have to stay and serve its
 * files then (share.c). */
#include <stdlib.h>
#include <unistd.h>

#include "nv.h"

extern char **environ;

int nv_execve(const char *path, char *const argv[], char *const envp[])
{
	/* Who looks for a program tries many names. */
	if (nv_loaded() && REAL(access)(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
		return -1;
	int report = nv_step_aside();

	if (report != -2)
		REAL(execve)(path, argv, envp);
	return nv_not_executed(report);
}

int nv_execvpe(const char *file, char *const argv[], char *const envp[])
{
	int report = nv_step_aside();

	if (report != -2)
		REAL(execvpe)(file, argv, envp);
	return nv_not_executed(report);
}

int nv_fexecve(int fd, char *const argv[], char *const envp[])
{
	int report = nv_step_aside();

	if (report != -2)
		REAL(fexecve)(fd, argv, envp);
	return nv_not_executed(report);
}

int nv_execveat(int dirfd, const char *path, char *const argv[], char *const envp[], int flags)
{
	int report = nv_step_aside();

	if (report != -2)
		REAL(execveat)(dirfd, path, argv, envp, flags);
	return nv_not_executed(report);
}

/* What the variadic forms do with their arguments. */
enum { PLAIN, SEARCH, ENVIRONMENT };

/* execute collects the arguments on the stack, like the C library: it may run
 * in a child of vfork. */
static int execute(int how, const char *path, const char *arg, va_list ap)
{
	size_t n = 1;
	va_list count;

	va_copy(count, ap);
	for (const char *a = arg; a != NULL; a = va_arg(count, const char *))
		n++;
	va_end(count);
	const char *argv[n];

	argv[0] = arg;
	for (size_t i = 1; i < n; i++)
		argv[i] = va_arg(ap, const char *);
	char *const *args = (char *const *)argv;
	char *const *envp = how == ENVIRONMENT ? va_arg(ap, char *const *) : environ;

	return how == SEARCH ? nv_execvpe(path, args, envp) : nv_execve(path, args, envp);
}

int nv_execl(const char *path, const char *arg, va_list ap)
{
	return execute(PLAIN, path, arg, ap);
}

int nv_execle(const char *path, const char *arg, va_list ap)
{
	return execute(ENVIRONMENT, path, arg, ap);
}

int nv_execlp(const char *file, const char *arg, va_list ap)
{
	return execute(SEARCH, file, arg, ap);
}

int nv_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
		   const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	nv_share_all();
	return REAL(posix_spawn)(pid, path, actions, attr, argv, envp);
}

int nv_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
		    const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	nv_share_all();
	return REAL(posix_spawnp)(pid, file, actions, attr, argv, envp);
}

int nv_system(const char *command)
{
	nv_share_all();
	return REAL(system)(command);
}

FILE *nv_popen(const char *command, const char *mode)
{
	nv_share_all();
	return REAL(popen)(command, mode);
}
