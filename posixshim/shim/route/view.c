/* The view that the kernel has of the first mount.
 *
 * nvmecr serve exports the files of a run by FUSE. NVMECR_EXPORT names the directory, in which the
 * link self leads each process to its own files. What the kernel, or the dynamic linker, is to open by
 * a path of the mount it is given by that of the view. A host without FUSE has no view: the
 * mount is then like a file system that is mounted noexec, as the other mounts are. */
#include <string.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

#define SELF "/self"

/* own_name is the name that this process's own files have in the view. It is asked for once, since whoever exports
 * them may end; "": that was before. */
NV_EARLY_CODE static const char *own_name(void)
{
	static char name[NAME_MAX + 1];
	char link[NV_PATH];

	if (*name == '\0' && snprintf(link, sizeof link, "%s" SELF, nv_view) < (int)sizeof link)
		nv_kernel(SYS_readlink, link, name, sizeof name - 1);
	return name;
}

/* name_root makes the place of an open file or directory one that begins at the root of its mount. */
static bool name_root(nv_handle h, struct nv_path_at *at, char path[NV_PATH])
{
	int64_t n = h & NV_ITSELF ? rt_name(h & ~NV_ITSELF, path, NV_PATH - 1) : rt_fpath(h, path, NV_PATH - 1);

	if (n < 0)
		return false;
	path[n] = '\0';
	return nv_route(AT_FDCWD, path, at);
}

/* in_view makes the path that a place has in the view. */
static const char *in_view(const struct nv_path_at *at, char buf[NV_PATH])
{
	struct nv_path_at root = {.dir = at->dir, .path = "."};
	char path[NV_PATH];

	if (!nv_root(at->dir) && !name_root(at->dir, &root, path))
		return NULL;
	const char *below = strcmp(root.path, ".") == 0 ? "" : root.path;
	bool itself = at->dir & NV_ITSELF;

	if (root.dir != 0) { /* of another mount */
		errno = EACCES;
		return NULL;
	}
	if (snprintf(buf, NV_PATH, "%s" SELF "%s%s%s%s", nv_view, *below == '\0' ? "" : "/", below, itself ? "" : "/",
		     itself ? "" : at->path) < NV_PATH)
		return buf;
	errno = ENAMETOOLONG;
	return NULL;
}

/* can_look says that the runtime can be asked, or a process that serves this one: it cannot be loaded in a
 * child of vfork. */
static bool can_look(void)
{
	return nv_loaded() || nv_served() || nv_own_memory();
}

static const char *go_outside(struct nv_path_at *at, char buf[NV_PATH])
{
	nv_go_outside(at, buf);
	return buf;
}

/* look says that a file is there. Where a link leads out of the mount the place becomes that outside. */
static bool look(struct nv_path_at *at, struct stat *st)
{
	int result;

	do
		result = (int)rt_stat(at, 0, st, sizeof *st);
	while (nv_reroute(at));
	return result == 0;
}

/* refused is what becomes of a file that only this library finds; the user is told once. */
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

/* without_view is nv_by_kernel where the mount has no view. */
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

/* nv_by_kernel returns the path by which the kernel finds what path names, in buf or as it is; NULL: it
 * does not. use says what for. */
const char *nv_by_kernel(int dirfd, const char *path, enum nv_use use, char buf[NV_PATH])
{
	struct nv_path_at at;
	struct stat st;
	int saved = errno;

	if (!nv_mounted || nv_nowhere(path) || *path == '\0')
		return path;
	bool there = *path != '/' && dirfd == AT_FDCWD && nv_working_in_view(); /* the kernel is there, too */
	bool up = strstr(path, "..") != NULL;					/* perhaps out of the mount */

	if ((there && !up) || !nv_route(dirfd, path, &at))
		return path;
	if (nv_view == NULL || (nv_root(at.dir) && at.dir != 0))
		return without_view(&at, path, use, buf);
	if ((up || *own_name() == '\0') && can_look()) { /* the first use of the mount on a host makes the view */
		look(&at, &st);
		errno = saved;
		if (at.outside)
			return go_outside(&at, buf);
	}
	return there ? path : in_view(&at, buf);
}

/* nv_file_by_kernel is the same for an open file of the mount. */
const char *nv_file_by_kernel(nv_handle h, enum nv_use use, char buf[NV_PATH])
{
	return nv_view != NULL ? in_view(&(struct nv_path_at){.dir = h | NV_ITSELF}, buf) : refused("a file that is open", use);
}

/* ---- the working directory ---- */

/* The files of processes that are alone (store.Proc.Tree). */
#define ALONE "job"

/* nv_below_view returns what follows this process's own files in a path of the kernel's; NULL: it is not
 * below them. Whose they are nobody can say any more when the view has ended: they are taken for its own. Where own is not NULL, files of processes
 * that are alone will do, and it says which they are: a rank that a job script has started where it was is there in its own files. */
NV_EARLY_CODE const char *nv_below_view(const char *path, bool *own)
{
	size_t n = strlen(nv_view);

	if (strncmp(path, nv_view, n) != 0 || path[n] != '/')
		return NULL;
	const char *tree = path + n + 1, *mine = own_name();

	n = strcspn(tree, "/");
	bool is = *mine == '\0' || (strncmp(tree, mine, n) == 0 && mine[n] == '\0');

	if (n == 0 || (!is && (own == NULL || n != strlen(ALONE) || strncmp(tree, ALONE, n) != 0)))
		return NULL;
	if (own != NULL)
		*own = is;
	return tree[n] == '/' ? tree + n + 1 : ".";
}

/* is_below says that an open directory can be found again by where it is. */
static bool is_below(int fd)
{
	char link[32], path[NV_PATH];

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = REAL(readlink)(link, path, sizeof path - 1);

	path[n > 0 ? n : 0] = '\0';
	return nv_below_view(path, NULL) != NULL;
}

/* nv_open_in_view opens a directory of the mount where the kernel can be in it; -1: there is no view, or it is
 * not this user's. */
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

/* of_mount says that a library of the mount is named, which the kernel does not find by that name. One without a
 * slash the linker looks for. */
static bool of_mount(const char *path)
{
	struct nv_path_at at;

	if (!nv_mounted || nv_nowhere(path) || strchr(path, '/') == NULL)
		return false;
	if (*path != '/' && nv_working_in_view() && strstr(path, "..") == NULL)
		return false;
	return nv_route(AT_FDCWD, path, &at);
}

/* What cannot be found the linker says itself. */
static void *load(const char *path, int mode)
{
	char buf[NV_PATH];
	const char *kernels = nv_by_kernel(AT_FDCWD, path, NV_LOAD, buf);

	return REAL(dlopen)(kernels == NULL ? path : kernels, mode);
}

/* nv_dlopen returns the function to call. For all other libraries that is the linker's, without a
 * frame of ours in between: it looks at the address of its caller. */
void *(*nv_dlopen(const char *path))(const char *path, int mode)
{
	return of_mount(path) ? load : REAL(dlopen);
}

/* ---- file actions of posix_spawn, which the C library carries out in the child ---- */

/* added is what a file action returns whose path has been found, or not. */
static int added(const char *kernels, int saved, int result)
{
	int error = kernels == NULL ? errno : result;

	errno = saved;
	return error;
}

int nv_add_open(posix_spawn_file_actions_t *actions, int fd, const char *path, int flags, mode_t mode)
{
	char buf[NV_PATH];
	int saved = errno;
	const char *kernels = nv_by_kernel(AT_FDCWD, path, NV_OPEN, buf);

	return added(kernels, saved, kernels == NULL ? 0 : REAL(posix_spawn_file_actions_addopen)(actions, fd, kernels, flags, mode));
}

int nv_add_chdir(posix_spawn_file_actions_t *actions, const char *path)
{
	char buf[NV_PATH];
	int saved = errno;
	const char *kernels = nv_by_kernel(AT_FDCWD, path, NV_OPEN, buf);

	return added(kernels, saved, kernels == NULL ? 0 : REAL(posix_spawn_file_actions_addchdir_np)(actions, kernels));
}
