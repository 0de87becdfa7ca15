/* ftw and nftw. libc's read directories with calls inside the library, which
 * cannot be intercepted, so a walk that begins in the mount is done here. */
#include <ftw.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

struct walk {
	nv_nftw *nftw; /* one of them is called */
	nv_ftw *ftw;
	int flags;
	dev_t device; /* that the walk began on */
	void *seen;   /* directories, where links are followed */
	size_t length;
	struct FTW at;
	char path[NV_PATH];
};

/* A directory that was seen. */
struct identity {
	dev_t device;
	ino_t inode;
};

static int compare(const void *a, const void *b)
{
	const struct identity *x = a, *y = b;

	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	return x->inode < y->inode ? -1 : x->inode > y->inode;
}

/* first says whether a directory is seen for the first time: 1, 0, or -1. */
static int first(struct walk *w, const struct stat *st)
{
	struct identity *id = malloc(sizeof *id);

	if (id == NULL)
		return -1;
	*id = (struct identity){st->st_dev, st->st_ino};
	struct identity **found = tsearch(id, &w->seen, compare);

	if (found == NULL || *found != id)
		free(id);
	return found == NULL ? -1 : *found == id;
}

/* report calls the caller's function. The older ftw knows fewer types. */
static int report(struct walk *w, const struct stat *st, int type)
{
	static const int old[] = {
		[FTW_F] = FTW_F, [FTW_D] = FTW_D, [FTW_DNR] = FTW_DNR, [FTW_NS] = FTW_NS,
		[FTW_SL] = FTW_F, [FTW_DP] = FTW_D, [FTW_SLN] = FTW_NS,
	};

	return w->nftw != NULL ? w->nftw(w->path, st, type, &w->at) : w->ftw(w->path, st, old[type]);
}

static int visit(struct walk *w, int parent, const char *name);

/* children visits what is in a directory. */
static int children(struct walk *w, DIR *stream)
{
	size_t length = w->length;
	int base = w->at.base, result = 0;

	w->at.level++;
	while (result == 0) {
		errno = 0;
		struct dirent *entry = readdir(stream);

		if (entry == NULL) {
			result = errno != 0 ? -1 : 0;
			break;
		}
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		bool slash = length > 0 && w->path[length - 1] != '/';
		int n = snprintf(w->path + length, sizeof w->path - length, "%s%s", slash ? "/" : "", entry->d_name);

		if (length + (size_t)n >= sizeof w->path) {
			errno = ENAMETOOLONG;
			result = -1;
			break;
		}
		w->length = length + (size_t)n;
		w->at.base = (int)(length + slash);
		result = visit(w, dirfd(stream), entry->d_name);
		if ((w->flags & FTW_ACTIONRETVAL) && result == FTW_SKIP_SUBTREE)
			result = 0;
	}
	w->at.level--;
	w->path[length] = '\0';
	w->length = length;
	w->at.base = base;
	return (w->flags & FTW_ACTIONRETVAL) && result == FTW_SKIP_SIBLINGS ? 0 : result;
}

/* directory visits a directory and what is in it. */
static int directory(struct walk *w, int parent, const char *name, const struct stat *st)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return errno == EACCES ? report(w, st, FTW_DNR) : -1;
	DIR *stream = fdopendir(fd);

	if (stream == NULL) {
		close(fd);
		return -1;
	}
	int result = w->flags & FTW_DEPTH ? 0 : report(w, st, FTW_D);

	if (result == 0 && (w->flags & FTW_CHDIR))
		result = fchdir(fd);
	if (result == 0)
		result = children(w, stream);
	int saved = errno;

	closedir(stream);
	errno = saved;
	if (result == 0 && (w->flags & FTW_DEPTH)) /* in the directory itself, as libc has it */
		result = report(w, st, FTW_DP);
	if ((w->flags & FTW_CHDIR) && parent != AT_FDCWD && fchdir(parent) != 0)
		return -1;
	return result;
}

static int visit(struct walk *w, int parent, const char *name)
{
	struct stat st = {0};
	int physical = w->flags & FTW_PHYS ? AT_SYMLINK_NOFOLLOW : 0;

	if (fstatat(parent, name, &st, physical) != 0) {
		if (errno != EACCES && errno != ENOENT)
			return -1;
		if (!physical && fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
			return report(w, &st, FTW_SLN);
		return w->at.level == 0 ? -1 : report(w, &st, FTW_NS);
	}
	if (w->at.level == 0)
		w->device = st.st_dev;
	if ((w->flags & FTW_MOUNT) && st.st_dev != w->device)
		return 0;
	if (!S_ISDIR(st.st_mode))
		return report(w, &st, S_ISLNK(st.st_mode) ? FTW_SL : FTW_F);
	int fresh = physical ? 1 : first(w, &st);

	return fresh == 1 ? directory(w, parent, name, &st) : fresh;
}

/* enter makes the directory above the root of the walk the working one. */
static int enter(const struct walk *w)
{
	char above[NV_PATH];

	if (w->at.base == 0)
		return 0;
	memcpy(above, w->path, (size_t)w->at.base);
	above[w->at.base] = '\0';
	return chdir(above);
}

static int begin(struct walk *w, const char *path)
{
	w->length = strlen(path);
	if (w->length == 0)
		return nv_error(ENOENT);
	if (w->length >= sizeof w->path)
		return nv_error(ENAMETOOLONG);
	strcpy(w->path, path);
	while (w->length > 1 && w->path[w->length - 1] == '/')
		w->path[--w->length] = '\0';
	const char *slash = strrchr(w->path, '/');

	w->at.base = slash == NULL || w->length == 1 ? 0 : (int)(slash + 1 - w->path);
	if (!(w->flags & FTW_CHDIR))
		return visit(w, AT_FDCWD, w->path);
	int before = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (before < 0)
		return -1;
	char root[NV_PATH];

	strcpy(root, w->path + (w->path[0] == '/' ? 0 : w->at.base));
	int result = enter(w) != 0 ? -1 : visit(w, AT_FDCWD, root);
	int saved = errno;

	if (fchdir(before) == 0)
		errno = saved;
	else
		result = -1;
	close(before);
	return result;
}

static void release(void *id)
{
	free(id);
}

static int walk(struct walk *w, const char *path)
{
	int result = begin(w, path);
	int saved = errno;

	tdestroy(w->seen, release);
	errno = saved;
	return result;
}

int nv_walk_ftw(const char *path, nv_ftw *f, int descriptors)
{
	struct nv_place at;

	if (!nv_route(AT_FDCWD, path, &at))
		return REAL(ftw)(path, f, descriptors);
	struct walk w;

	memset(&w, 0, offsetof(struct walk, path));
	w.ftw = f;
	return walk(&w, path);
}

int nv_walk_nftw(const char *path, nv_nftw *f, int descriptors, int flags)
{
	struct nv_place at;

	if (!nv_route(AT_FDCWD, path, &at))
		return REAL(nftw)(path, f, descriptors, flags);
	if (flags & ~(FTW_PHYS | FTW_MOUNT | FTW_CHDIR | FTW_DEPTH | FTW_ACTIONRETVAL))
		return nv_error(EINVAL);
	struct walk w;

	memset(&w, 0, offsetof(struct walk, path));
	w.nftw = f;
	w.flags = flags;
	return walk(&w, path);
}
