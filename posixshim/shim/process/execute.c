/* The calls that execute programs: exec and posix_spawn.
 *
 * The kernel is given the path in the view of a program that is ours (view.c). Before a program is executed, open files that
 * it or another process shares are handed over to nvmecr serve (inherit.c). A program that does not load this library gets
 * files of the view in the place of those that it inherits for reading. */
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

extern char **environ;

typedef int execute_call(const char *path, char *const argv[], char *const envp[]);

/* passes_files says whether the program inherits open files that the view may have. */
static bool passes_files(void)
{
	return nv_view != NULL && nv_passes_files(false);
}

/* loads_library says whether a program, or the interpreter of a script, will load this library. What cannot be read is taken for one that
 * does. patchelf moves the name of the dynamic linker. The buffer is not in the frame of run, for threads with a small stack. */
static __attribute__((noinline)) bool loads_library(const char *path, char *const envp[])
{
	union { char text[1024]; ElfW(Ehdr) elf; } head = {""};
	ElfW(Phdr) p = {0};
	struct stat st;

	while (envp != NULL && *envp != NULL && strncmp(*envp, "LD_PRELOAD=", 11) != 0)
		envp++;
	bool loads = envp != NULL && *envp != NULL && strstr(*envp, "libnvmecr.so") != NULL;

	for (int i = 0; loads && i < 6; i++) { /* the kernel executes that many interpreters one after the other */
		int fd = REAL(open)(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		ssize_t n = fd < 0 || REAL(fstat)(fd, &st) != 0 ? -1 : REAL(read)(fd, &head, sizeof head - 1);
		bool elf = n >= (ssize_t)sizeof head.elf && memcmp(&head, ELFMAG, SELFMAG) == 0;

		for (off_t j = 0; elf && j < head.elf.e_phnum && p.p_type != PT_INTERP; j++)
			REAL(pread)(fd, &p, sizeof p, (off_t)head.elf.e_phoff + j * (off_t)sizeof p);
		if (elf)
			loads = !(st.st_mode & (S_ISUID | S_ISGID)) && p.p_type == PT_INTERP &&
				REAL(pread)(fd, &head, sizeof head - 1, (off_t)p.p_offset) > 0 && strstr(head.text, "/ld-linux") != NULL;
		nv_close_quietly(fd);
		if (n < 2 || memcmp(&head, "#!", 2) != 0 || elf)
			break;
		head.text[n] = '\0';
		path = head.text + 2 + strspn(head.text + 2, " \t");
		head.text[path - head.text + (ssize_t)strcspn(path, " \t\n")] = '\0';
	}
	return loads;
}

/* run makes an exec call. It returns only if that fails. */
static int run(execute_call *call, const char *path, char *const argv[], char *const envp[])
{
	if (passes_files() && !loads_library(path, envp))
		nv_pass_by_view();
	nv_before_exec();
	call(path, argv, envp);
	return nv_exec_failed();
}

int nv_execve(const char *path, char *const argv[], char *const envp[])
{
	char buf[NV_PATH];

	path = nv_kernel_path(AT_FDCWD, path, NV_EXECUTE, buf);
	/* A program that searches PATH by itself tries many names. A missing file must not cost a hand-over. */
	if (path == NULL || (nv_loaded() && REAL(access)(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)))
		return -1;
	return run(REAL(execve), path, argv, envp);
}

int nv_fexecve(int fd, char *const argv[], char *const envp[])
{
	nv_handle h = nv_handle_of(fd);
	char buf[NV_PATH];

	if (h < 0)
		return nv_error(EBADF);
	if (h > 0) {
		const char *path = nv_kernel_path_of(h, NV_EXECUTE, buf);

		return path == NULL ? -1 : run(REAL(execve), path, argv, envp);
	}
	nv_before_exec();
	REAL(fexecve)(fd, argv, envp);
	return nv_exec_failed();
}

int nv_execveat(int dirfd, const char *path, char *const argv[], char *const envp[], int flags)
{
	char buf[NV_PATH];

	if (nv_mounted && (flags & ~AT_SYMLINK_NOFOLLOW) == AT_EMPTY_PATH && !nv_near_null(path) && *path == '\0' && nv_handle_of(dirfd) != 0)
		return nv_fexecve(dirfd, argv, envp);
	path = nv_kernel_path(dirfd, path, NV_EXECUTE, buf);
	if (path == NULL)
		return -1;
	nv_before_exec();
	REAL(execveat)(dirfd, path, argv, envp, flags);
	return nv_exec_failed();
}

/* ---- searching PATH ---- */

/* A search of PATH as the C library makes it. The C library's own would not find programs that are ours. */
struct search {
	const char *file;
	const char *next; /* the next directory, up to a colon; NULL: there is no further one */
};

/* next_candidate makes the next path to try; false: there is none. It skips paths that are too long. */
static bool next_candidate(struct search *s, char candidate[NV_PATH])
{
	while (s->next != NULL) {
		const char *dir = s->next, *end = strchrnul(dir, ':');
		int n = (int)(end - dir);

		s->next = *end == '\0' ? NULL : end + 1;
		if (snprintf(candidate, NV_PATH, "%.*s%s%s", n, dir, n > 0 ? "/" : "", s->file) < NV_PATH)
			return true;
	}
	return false;
}

/* searches_mount says whether a directory of the search is ours. */
static bool searches_mount(struct search s)
{
	char candidate[NV_PATH];
	struct nv_path_at at;

	while (next_candidate(&s, candidate))
		if (*candidate == '/' && nv_route(AT_FDCWD, candidate, &at))
			return true;
	return false;
}

/* executable says whether path is a regular file that may be executed. Otherwise errno says why not. */
static bool executable(const char *path)
{
	struct stat st;

	if (REAL(faccessat)(AT_FDCWD, path, X_OK, AT_EACCESS) != 0 || REAL(stat)(path, &st) != 0)
		return false;
	errno = EACCES;
	return S_ISREG(st.st_mode);
}

/* in_path returns what to call the C library's execvpe with: file itself if no directory of PATH is ours, otherwise, or if find is
 * set, the kernel's path of the program. NULL: the program was not found; errno is that of execvp. */
static const char *in_path(const char *file, bool find, char buf[NV_PATH])
{
	struct search s = {file, getenv("PATH")};
	const char *path;
	char candidate[NV_PATH];
	int saved = errno, error = ENOENT;

	if (!nv_mounted || nv_near_null(file) || *file == '\0')
		return file;
	if (strchr(file, '/') != NULL)
		return nv_kernel_path(AT_FDCWD, file, NV_EXECUTE, buf);
	if (s.next == NULL || !(find || searches_mount(s)))
		return file; /* the C library searches */
	while (next_candidate(&s, candidate)) {
		path = nv_kernel_path(AT_FDCWD, candidate, NV_SEARCH, buf);
		if (path != NULL && executable(path)) {
			errno = saved;
			return path == buf ? buf : strcpy(buf, path);
		}
		bool try_next = errno == EACCES || errno == ENOENT || errno == ENOTDIR;

		error = error == EACCES && try_next ? EACCES : errno;
		if (!try_next)
			break;
	}
	errno = error;
	return NULL;
}

int nv_execvpe(const char *file, char *const argv[], char *const envp[])
{
	char buf[NV_PATH];
	const char *path = in_path(file, passes_files(), buf);

	return path == NULL ? -1 : run(REAL(execvpe), path, argv, envp);
}

/* nv_execl makes a variadic call. It collects the arguments on the stack, as the C library does: in a child of vfork malloc would
 * change the parent's memory. */
int nv_execl(enum nv_variadic call, const char *path, const char *arg, va_list ap)
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
	char *const *envp = call == NV_EXECLE ? va_arg(ap, char *const *) : environ;

	return call == NV_EXECLP ? nv_execvpe(path, args, envp) : nv_execve(path, args, envp);
}

/* ---- spawning ---- */

int nv_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
		   const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	char buf[NV_PATH];
	int saved = errno, error;

	nv_share_all();
	path = nv_kernel_path(AT_FDCWD, path, NV_EXECUTE, buf);
	error = path == NULL ? errno : REAL(posix_spawn)(pid, path, actions, attr, argv, envp);
	errno = saved;
	return error;
}

int nv_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
		    const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	char buf[NV_PATH];
	int saved = errno, error;

	nv_share_all();
	file = in_path(file, false, buf);
	error = file == NULL ? errno : REAL(posix_spawnp)(pid, file, actions, attr, argv, envp);
	errno = saved;
	return error;
}
