/* glob: the C library's, which reads directories with our calls. */
#include <sys/stat.h>

#include "nv.h"

static void *glob_opendir(const char *path)
{
	return opendir(path);
}

static struct dirent *glob_readdir(void *stream)
{
	return readdir(stream);
}

static void glob_closedir(void *stream)
{
	closedir(stream);
}

static int glob_stat(const char *path, struct stat *st)
{
	return stat(path, st);
}

static int glob_lstat(const char *path, struct stat *st)
{
	return lstat(path, st);
}

int nv_glob(const char *pattern, int flags, int (*error)(const char *path, int error), glob_t *out)
{
	struct nv_place at;

	if ((flags & GLOB_ALTDIRFUNC) || !nv_route(AT_FDCWD, pattern, &at))
		return REAL(glob)(pattern, flags, error, out);
	out->gl_opendir = glob_opendir;
	out->gl_readdir = glob_readdir;
	out->gl_closedir = glob_closedir;
	out->gl_stat = glob_stat;
	out->gl_lstat = glob_lstat;
	return REAL(glob)(pattern, flags | GLOB_ALTDIRFUNC, error, out);
}
