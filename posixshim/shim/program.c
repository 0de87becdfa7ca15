/* Programs and scripts of the mount.
 *
 * The kernel, which is to execute a program, cannot read it here: it gets a copy
 * in memory, which nobody can write to any more once it is executed, and which
 * goes with the last process that executes it. For a script it gets the
 * interpreter, as it would have found it itself: an interpreter reads the script
 * by its name, and has this library for that. */
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nv.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x10u
#endif

/* The bytes that are copied at a time. */
#define BLOCK (1ul << 20)

/* What fetch has put into a file in memory: a program, or the head of a script;
 * a path that leads out of the mount. An errno is what else it may say. */
enum { FETCHED = 0, LED_OUT = 255 };

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash == NULL ? path : slash + 1;
}

/* nv_memory_file makes a file in memory that can be executed; Linux 6.3 wants to be
 * told so. Its name is what the kernel calls the process by. */
int nv_memory_file(const char *path)
{
	char name[NAME_MAX - sizeof "memfd:" + 1];
	int saved = errno;

	strncpy(name, base_name(path), sizeof name - 1);
	name[sizeof name - 1] = '\0';
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_EXEC);

	if (fd >= 0 || errno != EINVAL)
		return fd;
	errno = saved;
	return memfd_create(name, MFD_CLOEXEC);
}

/* put writes to the copy, which counts as a file to RLIMIT_FSIZE; nobody expects
 * that signal here. */
static int put(int to, const char *from, size_t n, off_t off)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && (rlim_t)off + n > limit.rlim_cur)
		return nv_error(EFBIG);
	while (n > 0) {
		ssize_t written = REAL(pwrite)(to, from, n, off);

		if (written < 0 && errno != EINTR)
			return -1;
		if (written > 0) {
			from += written;
			n -= (size_t)written;
			off += written;
		}
	}
	return 0;
}

/* nv_copy_rest copies what follows the first off bytes of a file. */
int nv_copy_rest(nv_handle h, int to, off_t off)
{
	char *block = REAL(mmap)(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int64_t n;

	if (block == MAP_FAILED)
		return -1;
	while ((n = rt_pread(h, block, BLOCK, off)) > 0) {
		if (put(to, block, (size_t)n, off) != 0)
			n = -1;
		if (n < 0)
			break;
		off += n;
	}
	int saved = errno;

	REAL(munmap)(block, BLOCK);
	errno = saved;
	return (int)n;
}

static bool is_script(const char *head)
{
	return head[0] == '#' && head[1] == '!';
}

/* executable fails with EACCES for what may not be executed. Only the name says
 * who may; of a file that has none any more it is anybody's right. */
static int executable(nv_handle h, struct nv_place *at)
{
	int saved = errno;
	struct nv_attr attr;

	if (rt_fstat(h, &attr) != 0)
		return -1;
	if (!S_ISREG(attr.mode))
		return nv_error(EACCES);
	if (rt_access(at, X_OK, NV_ACCESS_FOLLOW | NV_ACCESS_EFFECTIVE) == 0)
		return 0;
	if (errno != ENOENT || !(attr.mode & 0111))
		return nv_error(EACCES);
	errno = saved;
	return 0;
}

/* copy copies an open file, of a script no more than the kernel looks at. */
static int copy(nv_handle h, struct nv_place *at, int to)
{
	char head[NV_HEAD] = "";

	if (executable(h, at) != 0)
		return -1;
	int64_t n = rt_pread(h, head, sizeof head, 0);

	if (n < 0 || put(to, head, (size_t)n, 0) != 0)
		return -1;
	return is_script(head) ? 0 : nv_copy_rest(h, to, n);
}

/* copy_open copies the open file of a place, if it was opened to be read. */
static int copy_open(struct nv_place *at, int to)
{
	nv_handle h = at->dir & ~NV_ITSELF;
	int64_t flags = at->dir > 0 && h != at->dir ? rt_getfl(h) : -1;

	if (flags < 0 || (flags & O_PATH) || (flags & O_ACCMODE) == O_WRONLY)
		return nv_error(EBADF);
	return copy(h, at, to);
}

/* copy_named opens the file first. */
static int copy_named(struct nv_place *at, int flags, int to)
{
	nv_handle h;

	do
		h = rt_open(at, O_RDONLY | flags, 0);
	while (nv_reroute(at));
	if (at->outside || h < 0)
		return -1;
	int held = nv_server(h) != 0 ? at->descriptor : -1;
	int result = copy(h, &(struct nv_place){.dir = h | NV_ITSELF, .path = "."}, to), saved = errno;

	if (held >= 0)
		REAL(close)(held);
	rt_release(h);
	errno = saved;
	return result;
}

static int fetch(struct nv_place *at, int flags, int to)
{
	int saved = errno;

	if (copy_open(at, to) == 0)
		return FETCHED;
	if (errno == EBADF) {
		errno = saved;
		if (copy_named(at, flags, to) == 0)
			return FETCHED;
	}
	if (at->outside) {
		char outside[strlen(at->path) + 1];

		nv_go_outside(at, outside);
		return put(to, outside, strlen(outside), 0) == 0 ? LED_OUT : errno;
	}
	return errno;
}

/* fetch_by_child is for a child of vfork, which cannot load the runtime: one of
 * its own can. What the child of vfork does with SIGCHLD is its own, too. */
static int fetch_by_child(struct nv_place *at, int flags, int to)
{
	struct sigaction before, plain = {.sa_handler = SIG_DFL};
	int status = 0;

	REAL(sigaction)(SIGCHLD, &plain, &before);
	pid_t pid = fork();

	if (pid == 0)
		REAL(_exit)(fetch(at, flags, to));
	int error = pid < 0 ? errno : 0;

	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	REAL(sigaction)(SIGCHLD, &before, NULL);
	if (error != 0)
		return error;
	return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

/* read_head reads what the kernel would look at. */
static int read_head(int fd, char *head)
{
	ssize_t n = REAL(pread)(fd, head, NV_HEAD, 0);

	head[n > 0 ? n : 0] = '\0';
	return n < 0 ? -1 : 0;
}

/* nv_drop_program forgets a copy that is not to be executed. */
int nv_drop_program(struct nv_program *p)
{
	if (p->fd >= 0)
		nv_close_quietly(p->fd);
	p->fd = -1;
	return -1;
}

/* take_elsewhere takes the path that fetch has found. */
static int take_elsewhere(struct nv_program *p)
{
	ssize_t n = REAL(pread)(p->fd, p->elsewhere, sizeof p->elsewhere - 1, 0);

	if (n < 0)
		return -1;
	nv_drop_program(p);
	p->elsewhere[n] = '\0';
	p->path = p->elsewhere;
	return 0;
}

/* look_elsewhere reads the head of a file that is not of the mount, if it is one
 * that the kernel would execute: what it is not the kernel says. */
static void look_elsewhere(const char *path, char *head)
{
	struct stat st;
	int saved = errno, fd = -1;

	*head = '\0';
	if (REAL(stat)(path, &st) == 0 && S_ISREG(st.st_mode) && REAL(faccessat)(AT_FDCWD, path, X_OK, AT_EACCESS) == 0)
		fd = REAL(open)(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		read_head(fd, head);
		nv_close_quietly(fd);
	}
	errno = saved;
}

/* get finds the file, which the kernel is to execute or which begins with head. */
static int get(struct nv_program *p, struct nv_place *at, int flags, const char *path, char *head)
{
	if (at == NULL) {
		p->path = path;
		look_elsewhere(path, head);
		return 0;
	}
	p->ours = true;
	p->fd = nv_memory_file(path);
	if (p->fd < 0)
		return -1;
	int status = nv_loaded() || nv_own_memory() ? fetch(at, flags, p->fd) : fetch_by_child(at, flags, p->fd);

	switch (status) {
	case FETCHED:
		if (read_head(p->fd, head) == 0)
			return 0;
		break;
	case LED_OUT:
		if (take_elsewhere(p) != 0)
			break;
		look_elsewhere(p->path, head);
		return 0;
	default:
		errno = status;
	}
	return nv_drop_program(p);
}

/* parse finds the interpreter and its argument in the first line of a script, as
 * binfmt_script of the kernel does. */
static bool parse(char *head, char **interpreter, char **argument)
{
	char *name = head + 2 + strspn(head + 2, " \t"), *end = strchr(name, '\n');

	if (end == NULL && name + strcspn(name, " \t") == head + NV_HEAD)
		return false; /* there may be more of the name */
	if (end == name)
		return false;
	if (end == NULL)
		end = head + NV_HEAD - 1;
	while (end[-1] == ' ' || end[-1] == '\t')
		end--;
	*end = '\0';
	*interpreter = name;
	name += strcspn(name, " \t");
	*argument = name + strspn(name, " \t");
	*name = '\0';
	return true;
}

/* nv_room_for is how many pointers nv_find_program needs for argv. */
size_t nv_room_for(char *const argv[])
{
	size_t n = 0;

	while (!nv_nowhere(argv) && nv_there(argv + n, sizeof *argv) && argv[n] != NULL)
		n++;
	return NV_MORE_ARGS + n + 1;
}

/* interpret goes on from the script of that head, whose name is known to its
 * interpreter, to what is to be executed in the end. */
static int interpret(struct nv_program *p, const char *name, char *const argv[], const char **room)
{
	const char **first = room + NV_MORE_ARGS;
	size_t n = nv_room_for(argv) - NV_MORE_ARGS - 1;
	struct nv_place at;
	char *interpreter, *argument;

	if (n > 0)
		memcpy(first, argv + 1, n * sizeof *first);
	else
		*first = NULL;
	for (int depth = 0; is_script(p->head[depth]); depth++) {
		nv_drop_program(p);
		if (depth == NV_SCRIPTS)
			return nv_error(ELOOP);
		if (!parse(p->head[depth], &interpreter, &argument))
			return nv_error(ENOEXEC);
		if (depth > 0)
			first++;
		*--first = name;
		if (*argument != '\0')
			*--first = argument;
		*--first = name = interpreter;
		p->argv = (char *const *)first;
		if (get(p, nv_route(AT_FDCWD, name, &at) ? &at : NULL, 0, name, p->head[depth + 1]) != 0)
			return -1;
	}
	return 0;
}

static void begin(struct nv_program *p, char *const argv[])
{
	p->fd = -1;
	p->ours = false;
	p->path = NULL;
	p->argv = argv;
}

/* nv_find_program finds what is to be executed for the place, which is ours and is
 * opened with flags; its name is what an interpreter is told. room is for the
 * arguments. */
int nv_find_program(struct nv_program *p, struct nv_place *at, int flags, const char *name, char *const argv[],
		    const char **room)
{
	begin(p, argv);
	return get(p, at, flags, name, p->head[0]) != 0 ? -1 : interpret(p, name, argv, room);
}

/* nv_find_script finds it for a file that is elsewhere. */
int nv_find_script(struct nv_program *p, const char *path, char *const argv[], const char **room)
{
	begin(p, argv);
	get(p, NULL, 0, path, p->head[0]);
	return interpret(p, path, argv, room);
}

/* ---- the process ---- */

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* nv_name_process is called before main. A program that is executed without a
 * path is called after its descriptor, or by the file's name and what that is. */
NV_EARLY_CODE void nv_name_process(void)
{
	static const char memory[] = "/memfd:", deleted[] = " (deleted)";
	const char *by = (const char *)getauxval(AT_EXECFN);
	char link[NAME_MAX + sizeof deleted + 1];

	if (by == NULL || (!begins(by, "/dev/fd/") && !begins(by, "/proc/")))
		return;
	int saved = errno;
	ssize_t n = REAL(readlink)("/proc/self/exe", link, sizeof link - 1);

	link[n > 0 ? n : 0] = '\0';
	char *end = strrchr(link, ' ');

	if (begins(link, memory) && end != NULL && strcmp(end, deleted) == 0) {
		*end = '\0';
		prctl(PR_SET_NAME, link + strlen(memory));
	}
	errno = saved;
}
