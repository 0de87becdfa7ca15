/* Is a path ours; umask. */
#include <stdlib.h>
#include <string.h>

#include "nv.h"

#define MOUNT_DEPTH 32

bool nv_mounted;
const char *nv_mount;

static _Atomic mode_t mask_now;

/* The components of the mount's path. Written once, before main. */
static struct component {
	const char *name;
	size_t length;
} mount_path[MOUNT_DEPTH];
static unsigned mount_depth;

static size_t component_length(const char *path)
{
	size_t n = 0;

	while (path[n] != '\0' && path[n] != '/')
		n++;
	return n;
}

extern const unsigned short nv_real_signal[];
extern const unsigned nv_real_signal_count;

__attribute__((constructor)) static void prepare(void)
{
	mode_t mask;
	const char *p = getenv("NVMECR_MOUNT");

	for (unsigned i = 0; i < nv_real_signal_count; i++)
		nv_find_real(nv_real_signal[i]);
	mask = REAL(umask)(0);
	REAL(umask)(mask);
	atomic_store(&mask_now, mask);
	if (p == NULL || *p != '/')
		return;
	nv_mount = p;
	while (*p != '\0') {
		size_t n = component_length(p);

		if (n > 0 && mount_depth == MOUNT_DEPTH) {
			nv_complain("the mount %s has more than %d components; nothing is intercepted", nv_mount, MOUNT_DEPTH);
			return;
		}
		if (n > 0)
			mount_path[mount_depth++] = (struct component){p, n};
		p += n + (p[n] == '/');
	}
	nv_mounted = mount_depth > 0;
	if (!nv_mounted)
		return;
	nv_prepare_process();
	nv_find_cwd();
}

/* below_mount returns what follows the mount in an absolute path, or NULL if
 * the path leads elsewhere. "." and ".." before the mount are taken by the
 * letter, without looking at symbolic links; what follows is the runtime's. */
static const char *below_mount(const char *path)
{
	unsigned matched = 0; /* components of the mount so far */
	unsigned astray = 0;  /* components away from it */

	for (;;) {
		while (*path == '/')
			path++;
		if (matched == mount_depth && astray == 0)
			return *path != '\0' ? path : ".";
		if (*path == '\0')
			return NULL;
		size_t n = component_length(path);

		if (n == 2 && path[0] == '.' && path[1] == '.') {
			if (astray > 0)
				astray--;
			else if (matched > 0)
				matched--;
		} else if (n == 1 && path[0] == '.') {
			/* stays */
		} else if (astray == 0 && n == mount_path[matched].length &&
			   memcmp(path, mount_path[matched].name, n) == 0) {
			matched++;
		} else {
			astray++;
		}
		path += n;
	}
}

/* number returns the descriptor that a path ends in, or -1. */
static int number(const char *path)
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
static nv_handle named_descriptor(const char *path)
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

/* nv_route says whether a path is ours, and if so, where it begins. */
bool nv_route(int dirfd, const char *path, struct nv_place *at)
{
	if (!nv_mounted || path == NULL || nv_state == NV_INSIDE)
		return false;
	at->dir = 0;
	at->path = path;
	at->outside = false;
	at->hops = 0;
	if (*path == '/') {
		at->path = below_mount(path);
		if (at->path != NULL)
			return true;
		nv_handle h = named_descriptor(path);

		if (h == 0 || h == NV_RUNTIMES) /* one may look at the runtime's */
			return false;
		at->dir = h | NV_ITSELF;
		at->path = path;
		return true;
	}
	at->dir = dirfd == AT_FDCWD ? nv_working() : nv_ours(dirfd);
	return at->dir != 0;
}

/* As many as the kernel follows symbolic links. */
#define MAX_HOPS 40

bool nv_reroute_outside(struct nv_place *at)
{
	unsigned hops = at->hops + 1;

	if (!nv_route(AT_FDCWD, at->path, at)) {
		at->path = nv_outside;
		at->outside = true;
		return false;
	}
	at->hops = hops;
	if (hops <= MAX_HOPS)
		return true;
	errno = ELOOP;
	return false;
}

mode_t nv_umasked(mode_t mode)
{
	return mode & ~atomic_load_explicit(&mask_now, memory_order_relaxed);
}

mode_t nv_umask(mode_t mask)
{
	atomic_store(&mask_now, mask & 0777);
	return REAL(umask)(mask);
}
