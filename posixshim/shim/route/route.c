/* Which paths are ours.
 *
 * The decision is by name alone: a path is ours if its components, with "." and ".." applied, begin with those of a mount. The
 * tables are written before main and only read after that, so nv_route takes no lock. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

#define MOUNT_DEPTH 32

/* The components of a path; everything below that path belongs to a mount. */
struct prefix {
	nv_handle mount; /* the number of the mount */
	unsigned depth;  /* how many components; 0: this entry is unused */
	struct component {
		const char *name;
		size_t length;
	} path[MOUNT_DEPTH];
};

/* The variables of the environment that have the paths of further mounts, by number. */
static const char variables[NV_MOUNTS][24] = {[1] = "NVMECR_MOUNT_ALL"};

/* The paths of the mounts, by number. The last entry is the path in the view of the first mount's files. */
NV_EARLY static struct prefix prefixes[NV_MOUNTS + 1];

static size_t component_length(const char *path)
{
	size_t n = 0;

	while (path[n] != '\0' && path[n] != '/')
		n++;
	return n;
}

/* split fills prefix with the components of a path; false: they are too many. */
NV_EARLY_CODE static bool split(struct prefix *prefix, const char *p)
{
	while (*p != '\0') {
		size_t n = component_length(p);

		if (n > 0 && prefix->depth == MOUNT_DEPTH)
			return false;
		if (n > 0)
			prefix->path[prefix->depth++] = (struct component){p, n};
		p += n + (p[n] == '/');
	}
	return true;
}

/* find_view sets nv_view to the directory that nvmecr serve exports. */
NV_EARLY_CODE static void find_view(void)
{
	struct prefix *view = &prefixes[NV_MOUNTS];
	const char *p = nv_initial_env("NVMECR_EXPORT");

	if (p == NULL || *p != '/')
		return;
	if (split(view, p) && split(view, "self"))
		nv_view = p;
	else
		view->depth = 0;
}

/* add_mount adds a mount; false: calls below its path are not intercepted. */
NV_EARLY_CODE static bool add_mount(nv_handle number, const char *path)
{
	struct prefix *mount = &prefixes[number];

	mount->mount = number;
	if (split(mount, path))
		return mount->depth > 0;
	mount->depth = 0;
	nv_complain("the mount %s has more than %d components; nothing is intercepted", path, MOUNT_DEPTH);
	return false;
}

/* nv_init_mounts is called before main with the path of the first mount; false: no path is ours. */
NV_EARLY_CODE bool nv_init_mounts(const char *first)
{
	nv_mount = first;
	nv_mounted = add_mount(0, first);
	if (!nv_mounted)
		return false;
	for (int number = 1; number < NV_MOUNTS; number++) {
		const char *path = *variables[number] == '\0' ? NULL : nv_initial_env(variables[number]);

		if (path != NULL && *path == '/')
			add_mount(number, path);
	}
	find_view();
	return true;
}

/* The position of a walk from the root, relative to a prefix. */
struct walk {
	const struct prefix *prefix;
	unsigned matched; /* components of the prefix that the position has in common with it */
	unsigned beside;  /* components of the position after those */
	bool continues;   /* another path follows, which may lead back with ".." */
};

/* walk follows path and returns the rest of it after the prefix, or NULL if the position does not get there. "." and ".." on the
 * way are resolved by name, without looking at symbolic links. The runtime resolves the rest. */
NV_EARLY_CODE static const char *walk(struct walk *w, const char *path)
{
	for (;;) {
		while (*path == '/')
			path++;
		if (w->matched == w->prefix->depth && w->beside == 0)
			return *path != '\0' ? path : ".";
		if (*path == '\0')
			return NULL;
		size_t n = component_length(path);

		if (n == 2 && path[0] == '.' && path[1] == '.') {
			if (w->beside > 0)
				w->beside--;
			else if (w->matched > 0)
				w->matched--;
		} else if (n == 1 && path[0] == '.') {
			/* the position stays */
		} else if (w->beside == 0 && n == w->prefix->path[w->matched].length &&
			   memcmp(path, w->prefix->path[w->matched].name, n) == 0) {
			w->matched++;
		} else if (!w->continues && strstr(path + n, "/..") == NULL) {
			return NULL; /* the path does not lead back: nearly all paths that are not ours */
		} else {
			w->beside++;
		}
		path += n;
	}
}

/* find returns the rest of a path after the longest prefix that it begins with, and stores the number of that mount; NULL if
 * it begins with none. If base is not NULL, path is relative to base. */
NV_EARLY_CODE static const char *find(const char *base, const char *path, nv_handle *mount)
{
	const char *found = NULL;
	unsigned depth = 0;

	for (const struct prefix *p = prefixes; p <= &prefixes[NV_MOUNTS]; p++) {
		struct walk w = {.prefix = p, .continues = base != NULL};

		if (p->depth <= depth || (base != NULL && walk(&w, base) != NULL))
			continue;
		w.continues = false;
		const char *rest = walk(&w, path);

		if (rest != NULL) {
			found = rest;
			depth = p->depth;
			*mount = p->mount;
		}
	}
	return found;
}

/* names_mount says that a path contains the last component of a mount's path. */
NV_EARLY_CODE static bool names_mount(const char *path)
{
	for (const struct prefix *p = prefixes; p < &prefixes[NV_MOUNTS]; p++) {
		const struct component *last = &p->path[p->depth - (p->depth > 0)];

		if (p->depth > 0 && memmem(path, strlen(path), last->name, last->length) != NULL)
			return true;
	}
	return false;
}

/* from_outside returns the rest of a path after a mount, or NULL. The path is relative to a directory that is not ours. It
 * leads to a mount only if it contains the last component of the mount's path. Most paths do not, and cost no system call. */
NV_EARLY_CODE static const char *from_outside(int dirfd, const char *path, nv_handle *mount)
{
	char base[NV_PATH], link[sizeof "/proc/self/fd/" + 10];
	int saved = errno;

	if (!names_mount(path))
		return NULL;
	if (dirfd == AT_FDCWD) {
		if (REAL(getcwd)(base, sizeof base) == NULL)
			base[0] = '\0';
	} else {
		snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
		ssize_t n = REAL(readlink)(link, base, sizeof base - 1);

		base[n > 0 ? n : 0] = '\0';
	}
	errno = saved;
	return base[0] == '/' ? find(base, path, mount) : NULL;
}

/* number returns the number that path consists of, or -1. */
NV_EARLY_CODE static int number(const char *path)
{
	int n = 0;

	if (*path == '\0')
		return -1;
	for (; *path != '\0'; path++) {
		if (*path < '0' || *path > '9' || n >= NV_FDS)
			return -1;
		n = 10 * n + (*path - '0');
	}
	return n;
}

/* after returns what follows prefix in path, or NULL. */
static const char *after(const char *path, const char *prefix)
{
	size_t n = strlen(prefix);

	return strncmp(path, prefix, n) == 0 ? path + n : NULL;
}

/* named_descriptor returns the handle of the descriptor that a path of /proc or /dev names; 0: none of ours. */
NV_EARLY_CODE static nv_handle named_descriptor(const char *path)
{
	static const char *const standard[] = {"/dev/stdin", "/dev/stdout", "/dev/stderr"};
	static const char *const directory[] = {"/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"};
	const char *rest;

	if (path[1] != 'd' && path[1] != 'p')
		return 0;
	for (int fd = 0; fd < 3; fd++)
		if (strcmp(path, standard[fd]) == 0)
			return nv_handle_of(fd);
	for (int i = 0; i < 3; i++)
		if ((rest = after(path, directory[i])) != NULL)
			return nv_handle_of(number(rest));
	return 0;
}

/* nv_route says whether a path is ours, and stores in at where it begins. Paths near NULL or longer than PATH_MAX are left to the
 * kernel, which fails with EFAULT or ENAMETOOLONG. Paths that the runtime and its libraries open are not ours. A path
 * of a mount is, even on a thread that is inside: a handler of a fault signal has used it, and nv_enter fails. */
NV_EARLY_CODE bool nv_route(int dirfd, const char *path, struct nv_path_at *at)
{
	bool inside = nv_state == NV_INSIDE;

	if (!nv_mounted || nv_near_null(path))
		return false;
	at->dir = 0;
	at->path = path;
	at->outside = at->signals_blocked = false;
	at->hops = at->redirects = 0;
	if (*path == '/') {
		at->path = find(NULL, path, &at->dir);
		if (at->path != NULL)
			return strnlen(path, PATH_MAX) < PATH_MAX;
		if (inside)
			return false;
		nv_handle h = named_descriptor(path);

		if (h == 0 || h == NV_RUNTIME_OWNED) /* tools may look at the runtime's descriptors in /proc */
			return false;
		at->dir = h | NV_ITSELF;
		at->path = path;
		return true;
	}
	if (inside)
		return false;
	at->dir = dirfd == AT_FDCWD ? nv_cwd() : nv_handle_of(dirfd);
	if (at->dir != 0)
		return true;
	path = from_outside(dirfd, path, &at->dir);
	if (path != NULL)
		at->path = path;
	return path != NULL;
}

static void unblock_signals(struct nv_path_at *at)
{
	at->signals_blocked = false;
	nv_end_critical();
}

/* As many symbolic links as the kernel follows in a path. */
#define MAX_HOPS 40

/* nv_reroute_outside is the slow path of nv_reroute. The call may have been interrupted, after it returned, by a handler whose
 * call has overwritten nv_outside. So the call is first repeated with signals blocked. If the path in nv_outside is ours again,
 * the call is repeated with that. Signals stay blocked until nv_outside has been used or copied. */
bool nv_reroute_outside(struct nv_path_at *at)
{
	unsigned hops = at->hops + 1;

	if (!at->signals_blocked) {
		nv_begin_critical();
		at->outside = false;
		return at->signals_blocked = true;
	}
	if (!at->outside) {
		unblock_signals(at);
		return false;
	}
	at->outside = !nv_route(AT_FDCWD, nv_outside, at);
	at->signals_blocked = true;
	if (at->outside)
		at->path = nv_outside;
	if (at->outside || hops <= MAX_HOPS) {
		at->hops = hops;
		return !at->outside;
	}
	unblock_signals(at);
	errno = ELOOP;
	return false;
}

/* nv_go_outside copies a path that is outside to buf, which has strlen(at->path) + 1 bytes, and unblocks signals: the real
 * call, which follows, may block for ever. The buffer is on the stack of the wrapper, because a handler may leave that by
 * siglongjmp. */
void nv_go_outside(struct nv_path_at *at, char *buf)
{
	at->path = strcpy(buf, at->path);
	unblock_signals(at);
}

/* nv_cross_device is called for the path that is not ours, where the other path of a call is ours. It fails with EXDEV, or with
 * the error that the kernel has for that path. */
int nv_cross_device(int dirfd, const char *path)
{
	if (nv_near_null(path))
		return nv_error(EFAULT);
	if (strnlen(path, PATH_MAX) == PATH_MAX)
		return nv_error(ENAMETOOLONG);
	if (*path != '/' && dirfd != AT_FDCWD && REAL(fcntl)(dirfd, F_GETFD, NULL) < 0)
		return -1;
	return nv_error(EXDEV);
}

/* nv_credentials_changed is given the result of a call that may have changed the user or the groups of the process, and returns
 * it. The runtime then checks permissions for the new ones. A child of vfork shares the runtime with its parent, whose
 * credentials do not change. */
int nv_credentials_changed(int result)
{
	int saved = errno;

	if (result == 0 && nv_loaded() && nv_owns_memory()) {
		rt_credentials();
		errno = saved;
	}
	return result;
}
