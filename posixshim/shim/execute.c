/* The calls that execute programs.
 *
 * What is in the mount is executed from a copy (program.c). What is elsewhere is
 * left to the kernel, but for a script whose interpreter is in the mount. In both
 * cases this process may have to stay and serve its files (share.c). */
#include <paths.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

extern char **environ;

/* run executes what was found, and returns if that fails. */
static void run(const struct nv_program *p, char *const envp[])
{
	if (p->fd >= 0)
		REAL(execveat)(p->fd, "", p->argv, envp, AT_EMPTY_PATH);
	else
		REAL(execve)(p->path, p->argv, envp);
}

/* execute_ours executes the file of a place. Of a descriptor that the interpreter
 * of a script will not have, there is no script. */
static int execute_ours(struct nv_place *at, int flags, bool closed, const char *name, char *const argv[],
			char *const envp[])
{
	const char *room[nv_room_for(argv)];
	struct nv_program p;

	if (nv_find_program(&p, at, flags, name, argv, room) != 0)
		return -1;
	if (closed && p.argv != argv) {
		nv_drop_program(&p);
		return nv_error(ENOENT);
	}
	int report = nv_step_aside();

	if (report != -2)
		run(&p, envp);
	nv_drop_program(&p);
	return nv_not_executed(report);
}

/* execute_script is called for a path that is not ours when the kernel has said
 * that something is not there: that may be an interpreter in the mount. */
static void execute_script(const char *path, char *const argv[], char *const envp[])
{
	const char *room[nv_room_for(argv)];
	struct nv_program p;

	if (nv_find_script(&p, path, argv, room) == 0 && p.ours)
		run(&p, envp);
	nv_drop_program(&p);
}

int nv_execve(const char *path, char *const argv[], char *const envp[])
{
	struct nv_place at;

	if (nv_route(AT_FDCWD, path, &at))
		return execute_ours(&at, 0, false, path, argv, envp);
	/* Who looks for a program tries many names. */
	if (nv_loaded() && REAL(access)(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
		return -1;
	int report = nv_step_aside();

	if (report != -2 && REAL(execve)(path, argv, envp) != 0 && errno == ENOENT && nv_mounted)
		execute_script(path, argv, envp);
	return nv_not_executed(report);
}

/* of_descriptor makes at the open file of a descriptor. */
static void of_descriptor(struct nv_place *at, nv_handle h)
{
	*at = (struct nv_place){.dir = h | NV_ITSELF, .path = "."};
}

static bool closes(int fd)
{
	return REAL(fcntl)(fd, F_GETFD) & FD_CLOEXEC;
}

int nv_fexecve(int fd, char *const argv[], char *const envp[])
{
	nv_handle h = nv_ours(fd);
	struct nv_place at;
	char name[32];

	if (h == NV_RUNTIMES)
		return nv_error(EBADF);
	if (h != 0 && (nv_nowhere(argv) || nv_nowhere(envp)))
		return nv_error(EINVAL);
	if (h != 0) {
		of_descriptor(&at, h);
		snprintf(name, sizeof name, "/dev/fd/%d", fd);
		return execute_ours(&at, 0, closes(fd), name, argv, envp);
	}
	int report = nv_step_aside();

	if (report != -2)
		REAL(fexecve)(fd, argv, envp);
	return nv_not_executed(report);
}

/* full_name makes the path of a place that is relative to an open directory one
 * that an interpreter can open; the kernel's, /dev/fd/N/PATH, it cannot. */
static int full_name(const struct nv_place *at, char name[NV_PATH])
{
	char below[NV_PATH] = "";
	int64_t n = at->dir == 0 ? 0 : rt_fpath(at->dir, below, sizeof below - 1);

	if (n < 0)
		return -1;
	below[n] = '\0';
	if (snprintf(name, NV_PATH, "%s%s/%s", nv_mount, below, at->path) >= NV_PATH)
		return nv_error(ENAMETOOLONG);
	return 0;
}

int nv_execveat(int dirfd, const char *path, char *const argv[], char *const envp[], int flags)
{
	bool itself = nv_mounted && (flags & AT_EMPTY_PATH) && nv_name(path) && *path == '\0' && nv_ours(dirfd) != 0;
	bool known = (flags & ~(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)) == 0;
	struct nv_place at;
	char name[NV_PATH];

	if (itself && known)
		return nv_fexecve(dirfd, argv, envp);
	if (!itself && nv_route(dirfd, path, &at)) {
		bool relative = *path != '/' && dirfd != AT_FDCWD;

		if (!known)
			return nv_error(EINVAL);
		if (relative && full_name(&at, name) != 0)
			return -1;
		return execute_ours(&at, flags & AT_SYMLINK_NOFOLLOW ? O_NOFOLLOW : 0, relative && closes(dirfd),
				    relative ? name : path, argv, envp);
	}
	int report = nv_step_aside();

	if (report != -2 && REAL(execveat)(dirfd, path, argv, envp, flags) != 0 && errno == ENOENT && nv_mounted &&
	    known && nv_name(path) && (*path == '/' || (*path != '\0' && dirfd == AT_FDCWD)))
		execute_script(path, argv, envp);
	return nv_not_executed(report);
}

/* ---- looking for programs ---- */

/* A walk along PATH, as the C library does it. */
struct search {
	const char *file;
	const char *next; /* the directory to try; NULL: that was the last */
	int error;        /* what it fails with when there is nothing left to try */
};

/* Of a name that is too long so much is looked for: whoever has the directory
 * says what it is. */
#define LONG_NAME (NAME_MAX + 1)

static size_t longest(void)
{
	const char *path = getenv("PATH");

	return (path == NULL ? 0 : strlen(path)) + sizeof "/bin:/usr/bin" + 1 + LONG_NAME;
}

/* begin_search fails for what is no name. */
static int begin_search(struct search *s, const char *file)
{
	const char *path = getenv("PATH");

	if (*file == '\0')
		return nv_error(ENOENT);
	*s = (struct search){file, path == NULL ? "/bin:/usr/bin" : path, ENOENT};
	return 0;
}

/* next_candidate makes the next path to try. Directories that are too long are
 * none. */
static bool next_candidate(struct search *s, char *candidate)
{
	while (s->next != NULL) {
		const char *dir = s->next, *end = strchrnul(dir, ':');
		size_t n = (size_t)(end - dir);

		s->next = *end == '\0' ? NULL : end + 1;
		if (n >= PATH_MAX)
			continue;
		memcpy(candidate, dir, n);
		if (n > 0)
			candidate[n++] = '/';
		candidate[n] = '\0';
		strncat(candidate + n, s->file, LONG_NAME);
		return true;
	}
	return false;
}

/* goes_on says whether the search does, after that error. One that may not be
 * executed is what is told of in the end, else the last. */
static bool goes_on(struct search *s, int error)
{
	if (s->error != EACCES)
		s->error = error;
	return error == EACCES || error == ENOENT || error == ESTALE || error == ENOTDIR || error == ENODEV ||
	       error == ETIMEDOUT;
}

/* execute_or_read has the shell read what is no program. */
static int execute_or_read(const char *path, char *const argv[], char *const envp[])
{
	nv_execve(path, argv, envp);
	if (errno != ENOEXEC)
		return -1;
	size_t n = nv_room_for(argv) - NV_MORE_ARGS - 1;
	const char *args[n + 3];

	args[0] = _PATH_BSHELL;
	args[1] = path;
	args[2] = NULL;
	if (n > 1)
		memcpy(args + 2, argv + 1, n * sizeof *args);
	return nv_execve(_PATH_BSHELL, (char *const *)args, envp);
}

int nv_execvpe(const char *file, char *const argv[], char *const envp[])
{
	struct search s;

	if (!nv_mounted || !nv_string(file))
		return REAL(execvpe)(file, argv, envp);
	if (strchr(file, '/') != NULL)
		return execute_or_read(file, argv, envp);
	char candidate[longest()];

	if (begin_search(&s, file) != 0)
		return -1;
	while (next_candidate(&s, candidate)) {
		execute_or_read(candidate, argv, envp);
		if (!goes_on(&s, errno))
			return -1;
	}
	return nv_error(s.error);
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

/* ---- spawning ---- */

/* What a child is spawned with. */
struct spawning {
	pid_t *pid;
	const struct nv_spawn_files *files;
	const posix_spawnattr_t *attr;
	char *const *argv;
	char *const *envp;
};

/* spawn_found spawns what was found. The copy is this process's: the child, whose
 * descriptors may be closed and replaced first, finds it here. */
static int spawn_found(const struct spawning *s, struct nv_program *p)
{
	char copy[64], process[16];
	ssize_t n = REAL(readlink)("/proc/self", process, sizeof process - 1);

	process[n > 0 ? n : 0] = '\0';
	snprintf(copy, sizeof copy, "/proc/%s/fd/%d", process, p->fd);
	int result = REAL(posix_spawn)(s->pid, p->fd >= 0 ? copy : p->path, s->files->actions, s->attr, p->argv, s->envp);

	nv_drop_program(p);
	return result;
}

static int spawn(const struct spawning *s, const char *path)
{
	const char *room[nv_room_for(s->argv)];
	struct nv_spawn_path where;
	struct nv_program p;
	struct nv_place at;
	int saved = errno, result;

	if (nv_spawn_route(s->files, path, &where, &at)) {
		result = nv_find_program(&p, &at, 0, path, s->argv, room) != 0 ? errno : spawn_found(s, &p);
	} else {
		result = REAL(posix_spawn)(s->pid, path, s->files->actions, s->attr, s->argv, s->envp);
		if (result == ENOENT && nv_mounted && nv_find_script(&p, path, s->argv, room) == 0 && p.ours)
			result = spawn_found(s, &p);
	}
	errno = saved;
	return result;
}

int nv_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
		   const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	struct nv_spawn_files files;
	int result = nv_open_spawn_files(&files, actions);

	if (result != 0)
		return result;
	nv_share_all();
	result = spawn(&(struct spawning){pid, &files, attr, argv, envp}, path);
	nv_close_spawn_files(&files);
	return result;
}

/* leads_here says whether the mount is where a program is looked for. */
static bool leads_here(struct search s, char *candidate)
{
	struct nv_place at;

	while (next_candidate(&s, candidate))
		if (nv_route(AT_FDCWD, candidate, &at))
			return true;
	return false;
}

/* runnable says what executing it would. stat is ours or not. */
static int runnable(const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return errno;
	if (!S_ISREG(st.st_mode))
		return EACCES;
	return faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) != 0 ? errno : 0;
}

/* spawn_search looks first and spawns then: file actions are to be carried out
 * once. */
static int spawn_search(const struct spawning *how, struct search *s, char *candidate)
{
	while (next_candidate(s, candidate)) {
		int why = runnable(candidate);

		if (why == 0)
			return spawn(how, candidate);
		if (!goes_on(s, why))
			return why;
	}
	return s->error;
}

/* spawn_named spawns what has to be looked for. */
static int spawn_named(const struct spawning *how, const char *file)
{
	struct search s;
	int saved = errno;
	char candidate[longest()];
	bool ours = nv_mounted && nv_string(file) && begin_search(&s, file) == 0 && leads_here(s, candidate);

	errno = saved;
	if (!ours)
		return REAL(posix_spawnp)(how->pid, file, how->files->actions, how->attr, how->argv, how->envp);
	int result = spawn_search(how, &s, candidate);

	errno = saved;
	return result;
}

int nv_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
		    const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	bool named = nv_mounted && nv_string(file) && strchr(file, '/') != NULL;
	struct nv_spawn_files files;
	int result = nv_open_spawn_files(&files, actions);

	if (result != 0)
		return result;
	struct spawning how = {pid, &files, attr, argv, envp};

	nv_share_all();
	result = named ? spawn(&how, file) : spawn_named(&how, file);
	nv_close_spawn_files(&files);
	return result;
}

/* ---- shells ---- */

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
