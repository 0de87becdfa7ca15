/* The view: the first mount as the kernel has it.
 *
 * nvmecr serve exports the files of a run by FUSE. NVMECR_EXPORT names the directory of the view, in which the symbolic link
 * self leads each process to its own files. Where the kernel or the dynamic linker is to open a path of the mount, this file
 * replaces that path by its path in the view. A host without FUSE has no view. Its mount then behaves like a file system that
 * is mounted noexec, as all mounts but the first do. */
#include <string.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

#define SELF "/self"

/* own_name returns the target of the link self: the name in the view of the directory with this process's files. It is read
 * once and kept, because nvmecr serve may end; "": nvmecr serve does not run yet, or has ended. */
NV_EARLY_CODE static const char *own_name(void)
{
	static char name[NAME_MAX + 1];
	char link[NV_PATH];

	if (*name == '\0' && snprintf(link, sizeof link, "%s" SELF, nv_view) < (int)sizeof link)
		nv_kernel(SYS_readlink, link, name, sizeof name - 1);
	return name;
}

/* name_root stores in at the path, from the root of its mount, of an open file or directory. */
static bool name_root(nv_handle h, struct nv_path_at *at, char path[NV_PATH])
{
	int64_t n = h & NV_ITSELF ? rt_name(h & ~NV_ITSELF, path, NV_PATH - 1) : rt_fpath(h, path, NV_PATH - 1);

	if (n < 0)
		return false;
	path[n] = '\0';
	return nv_route(AT_FDCWD, path, at);
}

/* in_view returns the path in the view of what at names; NULL: it has none. */
static const char *in_view(const struct nv_path_at *at, char buf[NV_PATH])
{
	struct nv_path_at root = {.dir = at->dir, .path = "."};
	char path[NV_PATH];

	if (!nv_is_mount(at->dir) && !name_root(at->dir, &root, path))
		return NULL;
	const char *below = strcmp(root.path, ".") == 0 ? "" : root.path;
	bool itself = at->dir & NV_ITSELF;

	if (root.dir != 0) { /* only the first mount has a view */
		errno = EACCES;
		return NULL;
	}
	if (snprintf(buf, NV_PATH, "%s" SELF "%s%s%s%s", nv_view, *below == '\0' ? "" : "/", below, itself ? "" : "/",
		     itself ? "" : at->path) < NV_PATH)
		return buf;
	errno = ENAMETOOLONG;
	return NULL;
}

/* can_look says whether look can be called: a child of vfork cannot load the runtime. */
static bool can_look(void)
{
	return nv_loaded() || nv_served() || nv_owns_memory();
}

static const char *go_outside(struct nv_path_at *at, char buf[NV_PATH])
{
	nv_go_outside(at, buf);
	return buf;
}

/* look says whether a file exists, and stores its attributes. If the path is outside, it stores that in at. */
static bool look(struct nv_path_at *at, struct stat *st)
{
	int result;

	do
		result = (int)rt_stat(at, 0, st, sizeof *st);
	while (nv_reroute(at));
	return result == 0;
}

/* refused fails with EACCES for a file that the kernel cannot find. It prints the reason once. */
static const char *refused(const char *path, enum nv_use use)
{
	static const char uses[][24] = {
		[NV_EXECUTE] = "executed", [NV_SEARCH] = "executed", [NV_LOAD] = "loaded", [NV_OPEN] = "opened by posix_spawn"};
	static _Atomic bool told;

	if (atomic_exchange(&told, true))
		;
	else if (nv_view != NULL)
		nv_complain("%s cannot be %s: the kernel has no view of its mount; keep programs elsewhere", path, uses[use]);
	else
		nv_complain("%s cannot be %s: this host has no FUSE view of %s (needs /dev/fuse and root or fusermount3); "
			    "keep programs elsewhere",
			    path, uses[use], nv_mount);
	errno = EACCES;
	return NULL;
}

/* without_view is nv_kernel_path for a mount that has no view. */
static const char *without_view(struct nv_path_at *at, const char *path, enum nv_use use, char buf[NV_PATH])
{
	struct stat st = {.st_mode = S_IFREG};
	bool can = can_look(), found = !can || look(at, &st);

	if (at->outside)
		return go_outside(at, buf);
	if (use == NV_OPEN || (found && S_ISREG(st.st_mode) && (can || use != NV_SEARCH)))
		return refused(path, use);
	errno = found ? EACCES : errno;
	return NULL;
}

/* nv_kernel_path returns the path by which the kernel finds the file that path names: path itself, or another one in buf. It
 * returns NULL, with errno, if the kernel cannot find the file. */
const char *nv_kernel_path(int dirfd, const char *path, enum nv_use use, char buf[NV_PATH])
{
	struct nv_path_at at;
	struct stat st;
	int saved = errno;

	if (!nv_mounted || nv_near_null(path) || *path == '\0')
		return path;
	bool relative = *path != '/' && dirfd == AT_FDCWD && nv_cwd_in_view(); /* the kernel finds the file by path itself */
	bool up = strstr(path, "..") != NULL;				       /* path may lead out of the mount */

	if ((relative && !up) || !nv_route(dirfd, path, &at))
		return path;
	if (nv_view == NULL || (nv_is_mount(at.dir) && at.dir != 0))
		return without_view(&at, path, use, buf);
	if ((up || *own_name() == '\0') && can_look()) { /* the first use of the mount on a host starts nvmecr serve */
		look(&at, &st);
		errno = saved;
		if (at.outside)
			return go_outside(&at, buf);
	}
	return relative ? path : in_view(&at, buf);
}

/* nv_kernel_path_of is nv_kernel_path for an open file. */
const char *nv_kernel_path_of(nv_handle h, enum nv_use use, char buf[NV_PATH])
{
	return nv_view != NULL ? in_view(&(struct nv_path_at){.dir = h | NV_ITSELF}, buf) : refused("a file that is open", use);
}

/* ---- the working directory ---- */

/* The directory in the view of processes that are not ranks of an MPI job (store.Proc.Tree). */
#define SINGLETON "job"

/* nv_path_in_view returns the rest of a kernel's path after the directory with this process's files; NULL: the path is not below
 * that. If nvmecr serve has ended, every directory of the view is taken for this process's. If own is not NULL, the directory of
 * singleton processes counts too, and *own says whether the path is below this process's: a rank that a job script has started
 * in a directory of the script's files works in the directory of that name of its own files. */
NV_EARLY_CODE const char *nv_path_in_view(const char *path, bool *own)
{
	size_t n = strlen(nv_view);

	if (strncmp(path, nv_view, n) != 0 || path[n] != '/')
		return NULL;
	const char *tree = path + n + 1, *mine = own_name();

	n = strcspn(tree, "/");
	bool is = *mine == '\0' || (strncmp(tree, mine, n) == 0 && mine[n] == '\0');

	if (n == 0 || (!is && (own == NULL || n != strlen(SINGLETON) || strncmp(tree, SINGLETON, n) != 0)))
		return NULL;
	if (own != NULL)
		*own = is;
	return tree[n] == '/' ? tree + n + 1 : ".";
}

/* is_below says whether the path of an open directory is below this process's files in the view. */
static bool is_below(int fd)
{
	char link[32], path[NV_PATH];

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = REAL(readlink)(link, path, sizeof path - 1);

	path[n > 0 ? n : 0] = '\0';
	return nv_path_in_view(path, NULL) != NULL;
}

/* nv_open_in_view opens in the view the directory h, for the kernel's working directory; -1: there is no view, or it belongs to
 * another user. */
int nv_open_in_view(nv_handle h)
{
	char buf[NV_PATH];
	const char *path = nv_view == NULL ? NULL : in_view(&(struct nv_path_at){.dir = h, .path = "."}, buf);
	int fd = path == NULL ? -1 : REAL(open)(path, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || is_below(fd))
		return fd;
	nv_close_quietly(fd);
	return -1;
}

/* ---- libraries ---- */

/* of_mount says whether dlopen's path is ours and is not found by the kernel as it is. A path without a slash is none: the
 * dynamic linker searches for that name. */
static bool of_mount(const char *path)
{
	struct nv_path_at at;

	if (!nv_mounted || nv_near_null(path) || strchr(path, '/') == NULL)
		return false;
	if (*path != '/' && nv_cwd_in_view() && strstr(path, "..") == NULL)
		return false;
	return nv_route(AT_FDCWD, path, &at);
}

/* load loads a library of the mount. If the kernel cannot find it, the dynamic linker is given path, and sets dlerror. */
static void *load(const char *path, int mode)
{
	char buf[NV_PATH];
	const char *found = nv_kernel_path(AT_FDCWD, path, NV_LOAD, buf);

	return REAL(dlopen)(found == NULL ? path : found, mode);
}

/* nv_dlopen returns the function that the wrapper of dlopen jumps to. For libraries that are not ours that is the real dlopen,
 * which looks at the address of its caller. */
void *(*nv_dlopen(const char *path))(const char *path, int mode)
{
	return of_mount(path) ? load : REAL(dlopen);
}

/* ---- file actions of posix_spawn, which the C library carries out in the child ---- */

/* added returns the result of adding a file action, or the error if its path was not found, and restores errno. */
static int added(const char *found, int saved, int result)
{
	int error = found == NULL ? errno : result;

	errno = saved;
	return error;
}

int nv_add_open(posix_spawn_file_actions_t *actions, int fd, const char *path, int flags, mode_t mode)
{
	char buf[NV_PATH];
	int saved = errno;
	const char *found = nv_kernel_path(AT_FDCWD, path, NV_OPEN, buf);

	return added(found, saved, found == NULL ? 0 : REAL(posix_spawn_file_actions_addopen)(actions, fd, found, flags, mode));
}

int nv_add_chdir(posix_spawn_file_actions_t *actions, const char *path)
{
	char buf[NV_PATH];
	int saved = errno;
	const char *found = nv_kernel_path(AT_FDCWD, path, NV_OPEN, buf);

	return added(found, saved, found == NULL ? 0 : REAL(posix_spawn_file_actions_addchdir_np)(actions, found));
}
