/* Libraries of the mount that a program loads.
 *
 * The dynamic linker, which cannot read them here, gets a copy in memory. It is
 * called as if nobody had been in between for all other libraries, since it looks at
 * who calls: the wrappers jump to the function that nv_dlopen returns.
 *
 * The linker knows a library by the name it was loaded by and by its inode, of which
 * the copy has another one each time. So it is kept here which file was loaded by which
 * name. No name is given twice: the linker would take the new library for the old one. */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

#define NAME 96 /* of a copy */

struct library {
	struct library *next;
	uint64_t ino;
	char name[NAME];
	char path[]; /* it was asked for by */
};

static struct library *libraries;
static const struct nv_loading *innermost; /* that is being loaded */
static unsigned copies;

/* One thread at a time loads, as in the linker; and what is loaded may load more. */
static pthread_mutex_t loading;
static _Atomic pid_t loading_in;

static void lock(void)
{
	pid_t self = getpid();

	if (atomic_exchange(&loading_in, self) != self) { /* in a forked child nobody loads */
		pthread_mutexattr_t attr;

		pthread_mutexattr_init(&attr);
		pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
		pthread_mutex_init(&loading, &attr);
		pthread_mutexattr_destroy(&attr);
		innermost = NULL;
	}
	pthread_mutex_lock(&loading);
}

/* is_named is called for each library that is loaded. */
static int is_named(struct dl_phdr_info *info, size_t size, void *name)
{
	(void)size;
	return info->dlpi_name != NULL && strcmp(info->dlpi_name, name) == 0;
}

static bool loaded(struct library *l)
{
	return dl_iterate_phdr(is_named, l->name) != 0;
}

/* by_path finds what was loaded by that path, which the linker takes whatever the file is now. */
static struct library *by_path(const char *path)
{
	struct library *l = libraries;

	while (l != NULL && !(strcmp(l->path, path) == 0 && loaded(l)))
		l = l->next;
	return l;
}

static struct library *by_file(const struct nv_attr *file)
{
	struct library *l = libraries;

	while (l != NULL && !(l->ino == file->ino && loaded(l)))
		l = l->next;
	return l;
}

/* name_copy makes a name by which nothing was loaded before: steps that lead nowhere, "./" and
 * "/", are the digits of a number. */
static void name_copy(char name[NAME], int fd)
{
	unsigned n = ++copies;
	char *end = name + sprintf(name, "/proc/self/fd/");

	for (; n > 0; n >>= 1)
		end = stpcpy(end, n & 1 ? "./" : "/");
	sprintf(end, "%d", fd);
}

_Static_assert(sizeof "/proc/self/fd/" + 2 * 32 + 10 <= NAME, "it holds any number and any descriptor");

/* remember notes what the linker knows by a name. Without memory the library is loaded
 * again when it is asked for again. */
static void remember(const char *path, const struct nv_attr *file, const char *name)
{
	struct library *l = malloc(sizeof *l + strlen(path) + 1);

	if (l == NULL)
		return;
	*l = (struct library){.next = libraries, .ino = file->ino};
	strcpy(l->name, name);
	strcpy(l->path, path);
	libraries = l;
}

/* ---- loading ---- */

/* What is asked for. */
struct request {
	const char *path;
	int mode;
	const Lmid_t *space; /* of dlmopen; NULL: the caller's */
};

static void *load(const struct request *r, const char *name)
{
	return r->space == NULL ? REAL(dlopen)(name, r->mode) : REAL(dlmopen)(*r->space, name, r->mode);
}

/* copy copies an open file; -1 if that fails. */
static int copy(nv_handle h, const struct nv_attr *file, const char *path)
{
	if (!S_ISREG(file->mode))
		return nv_error(S_ISDIR(file->mode) ? EISDIR : EACCES);
	int to = nv_memory_file(path);

	if (to >= 0 && nv_copy_rest(h, to, 0) != 0) {
		nv_close_quietly(to);
		return -1;
	}
	return to;
}

/* load_copy loads a copy, after what that needs. */
static void *load_copy(const struct request *r, uint64_t ino, const char *name, int copy)
{
	struct nv_loading l = {.outer = innermost, .path = r->path, .ino = ino};

	innermost = &l;
	void *library = nv_load_needed(&l, copy) ? load(r, name) : NULL;

	innermost = l.outer;
	nv_let_needed(&l);
	return library;
}

/* load_file loads an open file, unless it is loaded already. Other name spaces
 * than the program's have libraries of their own. */
static void *load_file(const struct request *r, nv_handle h)
{
	bool base = r->space == NULL || *r->space == LM_ID_BASE;
	struct nv_attr file;
	char name[NAME];
	bool known = rt_fstat(h, &file) == 0;
	struct library *l = known && base ? by_file(&file) : NULL;

	if (l != NULL)
		return load(r, l->name);
	int to = known ? copy(h, &file, r->path) : -1;

	if (to < 0) {
		nv_complain("%s cannot be loaded: %m", r->path);
		return load(r, r->path);
	}
	name_copy(name, to);
	void *library = base ? load_copy(r, file.ino, name, to) : load(r, name);

	nv_close_quietly(to);
	if (library != NULL && base)
		remember(r->path, &file, name);
	return library;
}

/* load_named loads what is there by the name. What is not there, or leads out of the
 * mount, is the linker's, which says so in its own words. */
static void *load_named(const struct request *r)
{
	struct nv_place at = {.path = r->path};
	int fd = -1;

	if (nv_route(AT_FDCWD, r->path, &at))
		do
			fd = nv_open(&at, O_RDONLY | O_CLOEXEC, 0);
		while (nv_reroute(&at));
	if (at.outside) {
		char outside[strlen(at.path) + 1];

		nv_go_outside(&at, outside);
		return load(r, at.path);
	}
	if (fd < 0)
		return load(r, r->path);
	void *library = load_file(r, nv_ours(fd));

	nv_close(fd);
	return library;
}

static void *load_ours(const struct request *r)
{
	bool base = r->space == NULL || *r->space == LM_ID_BASE;
	int saved = errno;

	lock();
	struct library *l = base ? by_path(r->path) : NULL;
	void *library = l != NULL ? load(r, l->name) : load_named(r);

	pthread_mutex_unlock(&loading);
	errno = saved;
	return library;
}

void *nv_load_library(const char *path, int mode)
{
	return load_ours(&(struct request){path, mode, NULL});
}

/* open_found loads a library that is named without a slash, which LD_LIBRARY_PATH leads to. */
static void *open_found(const char *name, int mode)
{
	int saved = errno;
	char *path = nv_present(name) ? NULL : nv_look_for(name);

	errno = saved;
	void *library = path == NULL ? REAL(dlopen)(name, mode) : nv_load_library(path, mode);

	free(path);
	return library;
}

static void *open_ours_in(Lmid_t space, const char *path, int mode)
{
	return load_ours(&(struct request){path, mode, &space});
}

/* named says that a library of the mount is named. What is without a slash is looked for. */
static bool named(const char *path)
{
	struct nv_place at;

	return nv_mounted && !nv_nowhere(path) && strchr(path, '/') != NULL && nv_route(AT_FDCWD, path, &at);
}

/* sought says that a library is looked for, and that the mount is one of the places. */
static bool sought(const char *name)
{
	const char *dirs = nv_given("LD_LIBRARY_PATH");

	return nv_mounted && !nv_nowhere(name) && *name != '\0' && strchr(name, '/') == NULL && dirs != NULL &&
	       strstr(dirs, nv_mount) != NULL && !nv_runtimes();
}

/* nv_dlopen and nv_dlmopen return the function to call, without a frame of ours in between. */
void *(*nv_dlopen(const char *path))(const char *path, int mode)
{
	return named(path) ? nv_load_library : sought(path) ? open_found : REAL(dlopen);
}

void *(*nv_dlmopen(Lmid_t space, const char *path))(Lmid_t space, const char *path, int mode)
{
	(void)space;
	return named(path) ? open_ours_in : REAL(dlmopen);
}
