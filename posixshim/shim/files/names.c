/* Calls on names that need more than one call of the runtime: pathconf, readlink, realpath, mkstemp, mkdtemp. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

long nv_pathconf(int name)
{
	switch (name) {
	case _PC_LINK_MAX:
		return 65000;
	case _PC_FILESIZEBITS:
		return 64;
	}
	return REAL(pathconf)("/", name);
}

/* descriptor_link stores in buf the target of /proc/self/fd/N for a descriptor of ours. */
static ssize_t descriptor_link(struct nv_path_at *at, char *buf, size_t n)
{
	char name[NV_PATH];
	int64_t length = rt_name(at->dir & ~(nv_handle)NV_ITSELF, name, sizeof name);

	if (length < 0)
		return -1;
	if (n > (size_t)length)
		n = (size_t)length;
	memcpy(buf, name, n);
	return (ssize_t)n;
}

ssize_t nv_readlink(struct nv_path_at *at, char *buf, size_t n)
{
	if (!(at->dir & NV_ITSELF) || *at->path != '/')
		return rt_readlink(at, buf, n);
	if (nv_near_null(buf))
		return nv_error(EFAULT);
	if (n == 0)
		return nv_error(EINVAL);
	/* /dev/stdout is a link to /proc/self/fd/1, not to the file. */
	return strncmp(at->path, "/dev/std", 8) == 0 ? REAL(readlink)(at->path, buf, n) : descriptor_link(at, buf, n);
}

char *nv_realpath(struct nv_path_at *at, char *resolved)
{
	char path[NV_PATH];
	int64_t n = rt_realpath(at, path, sizeof path - 1);

	if (n < 0 || (resolved == NULL && (resolved = malloc((size_t)n + 1)) == NULL))
		return NULL;
	memcpy(resolved, path, (size_t)n);
	resolved[n] = '\0';
	return resolved;
}

/* placeholders returns the address of the six X of a template, or NULL with EINVAL. */
static char *placeholders(char *name, int suffix)
{
	size_t n = strlen(name);

	if (suffix < 0 || n < 6 + (size_t)suffix || memcmp(name + n - 6 - (size_t)suffix, "XXXXXX", 6) != 0) {
		errno = EINVAL;
		return NULL;
	}
	return name + n - 6 - (size_t)suffix;
}

/* randomize replaces the six X by letters and digits, which differ between processes and between calls. */
static void randomize(char *x)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
	static _Atomic uint64_t count;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t v = ((uint64_t)now.tv_nsec << 20 ^ (uint64_t)now.tv_sec << 32 ^ (uint64_t)getpid()) +
		     atomic_fetch_add(&count, UINT64_C(0x9e3779b97f4a7c15));

	for (int i = 0; i < 6; i++, v /= 62)
		x[i] = letters[v % 62];
}

#define ATTEMPTS 10000

/* make_unique fills in a template and calls make, again and again until that does not fail with EEXIST. */
static int make_unique(struct nv_path_at *at, char *name, int suffix, int (*make)(struct nv_path_at *at, int flags), int flags)
{
	char *x = placeholders(name, suffix);
	int saved = errno, result = -1;

	if (x == NULL)
		return -1;
	for (int i = 0; i < ATTEMPTS; i++) {
		randomize(x);
		result = make(at, flags);
		if (result >= 0 || errno != EEXIST)
			break;
	}
	errno = result >= 0 ? saved : errno;
	return result;
}

static int make_file(struct nv_path_at *at, int flags)
{
	return nv_open(at, O_RDWR | O_CREAT | O_EXCL | (flags & ~O_ACCMODE), 0600);
}

static int make_directory(struct nv_path_at *at, int flags)
{
	(void)flags;
	return (int)rt_mkdir(at, nv_umasked(0700));
}

int nv_mkstemp(char *name, int suffix, int flags)
{
	struct nv_path_at at;

	if (!nv_route(AT_FDCWD, name, &at))
		return REAL(mkostemps)(name, suffix, flags);
	return make_unique(&at, name, suffix, make_file, flags);
}

char *nv_mkdtemp(char *name)
{
	struct nv_path_at at;

	if (!nv_route(AT_FDCWD, name, &at))
		return REAL(mkdtemp)(name);
	return make_unique(&at, name, 0, make_directory, 0) == 0 ? name : NULL;
}
