/* Is a path ours. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

#define MOUNT_DEPTH 32

/* A path below which all is of a mount, by its components. */
struct prefix {
	nv_handle mount; /* its number */
	unsigned depth;  /* 0: there is none */
	struct component {
		const char *name;
		size_t length;
	} path[MOUNT_DEPTH];
};

/* Where further mounts are, by number. */
static const char variables[NV_MOUNTS][24] = {[1] = "NVMECR_MOUNT_ALL"};

/* The paths of the mounts, by number, and behind them that of the first one's files in the view. Written once, before main. */
NV_EARLY static struct prefix prefixes[NV_MOUNTS + 1];

static size_t component_length(const char *path)
{
	size_t n = 0;

	while (path[n] != '\0' && path[n] != '/')
		n++;
	return n;
}

/* split takes a path apart; false: it has too many components. */
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

/* find_view finds what nvmecr serve exports. */
NV_EARLY_CODE static void find_view(void)
{
	struct prefix *view = &prefixes[NV_MOUNTS];
	const char *p = nv_given("NVMECR_EXPORT");

	if (p == NULL || *p != '/')
		return;
	if (split(view, p) && split(view, "self"))
		nv_view = p;
	else
		view->depth = 0;
}

/* add_mount adds the mount of a number; false: nothing is intercepted below its path. */
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

/* nv_find_mounts is called before main with the path of the first mount; false: nothing is ours. */
NV_EARLY_CODE bool nv_find_mounts(const char *first)
{
	nv_mount = first;
	nv_mounted = add_mount(0, first);
	if (!nv_mounted)
		return false;
	for (int number = 1; number < NV_MOUNTS; number++) {
		const char *path = *variables[number] == '\0' ? NULL : nv_given(variables[number]);

		if (path != NULL && *path == '/')
			add_mount(number, path);
	}
	find_view();
	return true;
}

/* How far a walk from the root has come. */
struct walk {
	const struct prefix *prefix;
	unsigned matched; /* its components so far */
	unsigned astray;  /* components away from it */
	bool goes_on;     /* with another path */
};

/* walk goes along path and returns what follows the prefix in it, or NULL if
 * it does not lead there. "." and ".." before that are taken by the
 * letter, without looking at symbolic links; what follows is the runtime's. */
NV_EARLY_CODE static const char *walk(struct walk *w, const char *path)
{
	for (;;) {
		while (*path == '/')
			path++;
		if (w->matched == w->prefix->depth && w->astray == 0)
			return *path != '\0' ? path : ".";
		if (*path == '\0')
			return NULL;
		size_t n = component_length(path);

		if (n == 2 && path[0] == '.' && path[1] == '.') {
			if (w->astray > 0)
				w->astray--;
			else if (w->matched > 0)
				w->matched--;
		} else if (n == 1 && path[0] == '.') {
			/* stays */
		} else if (w->astray == 0 && n == w->prefix->path[w->matched].length &&
			   memcmp(path, w->prefix->path[w->matched].name, n) == 0) {
			w->matched++;
		} else if (!w->goes_on && strstr(path + n, "/..") == NULL) {
			return NULL; /* nearly all paths */
		} else {
			w->astray++;
		}
		path += n;
	}
}

/* find returns what follows the longest prefix in a path, and notes the mount, or returns NULL. Where base is not NULL path is
 * relative to it. */
NV_EARLY_CODE static const char *find(const char *base, const char *path, nv_handle *mount)
{
	const char *found = NULL;
	unsigned depth = 0;

	for (const struct prefix *p = prefixes; p <= &prefixes[NV_MOUNTS]; p++) {
		struct walk w = {.prefix = p, .goes_on = base != NULL};

		if (p->depth <= depth || (base != NULL && walk(&w, base) != NULL))
			continue;
		w.goes_on = false;
		const char *rest = walk(&w, path);

		if (rest != NULL) {
			found = rest;
			depth = p->depth;
			*mount = p->mount;
		}
	}
	return found;
}

/* names_mount says that a path names the last component of a mount. */
NV_EARLY_CODE static bool names_mount(const char *path)
{
	for (const struct prefix *p = prefixes; p < &prefixes[NV_MOUNTS]; p++) {
		const struct component *last = &p->path[p->depth - (p->depth > 0)];

		if (p->depth > 0 && memmem(path, strlen(path), last->name, last->length) != NULL)
			return true;
	}
	return false;
}

/* from_outside returns what follows a mount in a path that is relative to a
 * directory of the kernel's, or NULL. Such a path names the mount's last
 * component, or it leads elsewhere: most are told apart by that alone. */
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

/* number returns the descriptor that a path ends in, or -1. */
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

/* named_descriptor returns the handle of a path that names a descriptor. */
NV_EARLY_CODE static nv_handle named_descriptor(const char *path)
{
	static const char *const standard[] = {"/dev/stdin", "/dev/stdout", "/dev/stderr"};
	static const char *const directory[] = {"/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"};
	const char *rest;

	if (path[1] != 'd' && path[1] != 'p')
		return 0;
	for (int fd = 0; fd < 3; fd++)
		if (strcmp(path, standard[fd]) == 0)
			return nv_ours(fd);
	for (int i = 0; i < 3; i++)
		if ((rest = after(path, directory[i])) != NULL)
			return nv_ours(number(rest));
	return 0;
}

/* nv_route says whether a path is ours, and if so, where it begins. What no
 * file system has (no memory, or too long as a whole) is left to the kernel,
 * which refuses it, and so is one that cannot be read. What the runtime and its libraries open is not ours; a name
 * of the mount is a signal handler's then, and refused when it is entered. */
NV_EARLY_CODE bool nv_route(int dirfd, const char *path, struct nv_path_at *at)
{
	bool inside = nv_state == NV_INSIDE;

	if (!nv_mounted || nv_nowhere(path))
		return false;
	at->dir = 0;
	at->path = path;
	at->outside = at->held = false;
	at->hops = at->moves = 0;
	if (*path == '/') {
		at->path = find(NULL, path, &at->dir);
		if (at->path != NULL)
			return strnlen(path, PATH_MAX) < PATH_MAX;
		if (inside)
			return false;
		nv_handle h = named_descriptor(path);

		if (h == 0 || h == NV_RUNTIMES) /* one may look at the runtime's */
			return false;
		at->dir = h | NV_ITSELF;
		at->path = path;
		return true;
	}
	if (inside)
		return false;
	at->dir = dirfd == AT_FDCWD ? nv_working() : nv_ours(dirfd);
	if (at->dir != 0)
		return true;
	path = from_outside(dirfd, path, &at->dir);
	if (path != NULL)
		at->path = path;
	return path != NULL;
}

static void let_signals(struct nv_path_at *at)
{
	at->held = false;
	nv_let_go();
}

/* As many as the kernel follows symbolic links. */
#define MAX_HOPS 40

/* nv_reroute_outside has a call that was led out made once more with signals blocked: a
 * handler that is led out, too, writes another path to nv_outside. They stay blocked until
 * the path has been copied, or a path that leads back in has been used. */
bool nv_reroute_outside(struct nv_path_at *at)
{
	unsigned hops = at->hops + 1;

	if (!at->held) {
		nv_hold();
		at->outside = false;
		return at->held = true;
	}
	if (!at->outside) {
		let_signals(at);
		return false;
	}
	at->outside = !nv_route(AT_FDCWD, nv_outside, at);
	at->held = true;
	if (at->outside)
		at->path = nv_outside;
	if (at->outside || hops <= MAX_HOPS) {
		at->hops = hops;
		return !at->outside;
	}
	let_signals(at);
	errno = ELOOP;
	return false;
}

/* nv_go_outside copies the path of a place that leads out of the mount to buf, where it is
 * to be strlen(at->path) + 1 bytes, and lets signals in: what follows may wait for ever. The
 * buf is on the stack of the caller, which a handler may leave by siglongjmp. */
void nv_go_outside(struct nv_path_at *at, char *buf)
{
	at->path = strcpy(buf, at->path);
	let_signals(at);
}

/* nv_cross_device fails for two paths of which one is not ours: this one. It is in
 * another file system, unless it is none at all. */
int nv_cross_device(int dirfd, const char *path)
{
	if (nv_nowhere(path))
		return nv_error(EFAULT);
	if (strnlen(path, PATH_MAX) == PATH_MAX)
		return nv_error(ENAMETOOLONG);
	if (*path != '/' && dirfd != AT_FDCWD && REAL(fcntl)(dirfd, F_GETFD, NULL) < 0)
		return -1;
	return nv_error(EXDEV);
}

/* nv_credentials_changed is what a call that may have changed who we are has returned: the
 * files are asked for as who that is from now on, as the kernel has it. A vfork
 * child is somebody else and shares the runtime with its parent. */
int nv_credentials_changed(int result)
{
	int saved = errno;

	if (result == 0 && nv_loaded() && nv_own_memory()) {
		rt_credentials();
		errno = saved;
	}
	return result;
}
