/* fts. libc's reads directories with calls inside the library, which cannot be
 * intercepted, so a walk with a root in the mount is done here. It does not
 * change the working directory, as if FTS_NOCHDIR were always set: fts_accpath
 * is the path. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

/* In fts_options: the walk is ours. libc has no such option. */
#define OURS 0x40000000

struct walk {
	FTS fts;
	FTSENT *top; /* the parent of the roots, and the first current entry */
};

static bool option(const FTS *t, int what)
{
	return (t->fts_options & what) != 0;
}

static bool is_dot(const char *name)
{
	return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

/* An entry and what its pointers point to; its name and path follow it. */
struct node {
	struct stat st;
	FTSENT entry;
};

static void release(FTSENT *p)
{
	free((char *)p - offsetof(struct node, entry));
}

static void release_list(FTSENT *p)
{
	while (p != NULL) {
		FTSENT *gone = p;

		p = p->fts_link;
		release(gone);
	}
}

/* make makes the entry of a name in a directory, whose path is dir; for a root
 * that is empty, and the name a path. NULL with ENOMEM or ENAMETOOLONG. */
static FTSENT *make(FTSENT *parent, const char *dir, const char *name)
{
	size_t above = strlen(dir), length = strlen(name);
	bool slash = above > 0 && dir[above - 1] != '/';
	size_t whole = above + slash + length;

	if (whole > USHRT_MAX) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	struct node *n = calloc(1, sizeof *n + length + whole + 2);

	if (n == NULL)
		return NULL;
	FTSENT *p = &n->entry;
	char *path = p->fts_name + length + 1;

	memcpy(p->fts_name, name, length + 1);
	memcpy(path, dir, above);
	path[above] = '/';
	memcpy(path + above + slash, name, length + 1);
	p->fts_namelen = (unsigned short)length;
	p->fts_pathlen = (unsigned short)whole;
	p->fts_accpath = p->fts_path = path;
	p->fts_statp = &n->st;
	p->fts_parent = parent;
	p->fts_level = (short)(parent == NULL ? FTS_ROOTPARENTLEVEL : parent->fts_level + 1);
	p->fts_instr = FTS_NOINSTR;
	return p;
}

/* kind is what an entry is whose attributes are known. */
static unsigned short kind(FTSENT *p)
{
	const struct stat *st = p->fts_statp;

	if (S_ISLNK(st->st_mode))
		return FTS_SL;
	if (S_ISREG(st->st_mode))
		return FTS_F;
	if (!S_ISDIR(st->st_mode))
		return FTS_DEFAULT;
	p->fts_dev = st->st_dev;
	p->fts_ino = st->st_ino;
	p->fts_nlink = st->st_nlink;
	if (is_dot(p->fts_name))
		return FTS_DOT;
	for (FTSENT *a = p->fts_parent; a->fts_level >= FTS_ROOTLEVEL; a = a->fts_parent)
		if (a->fts_ino == p->fts_ino && a->fts_dev == p->fts_dev) {
			p->fts_cycle = a;
			return FTS_DC;
		}
	return FTS_D;
}

/* look finds out what an entry is. */
static void look(FTS *t, FTSENT *p, bool follow)
{
	follow = follow || option(t, FTS_LOGICAL);
	int failed = follow ? stat(p->fts_accpath, p->fts_statp) : lstat(p->fts_accpath, p->fts_statp);
	int why = errno;

	if (failed == 0) {
		p->fts_info = kind(p);
	} else if (follow && lstat(p->fts_accpath, p->fts_statp) == 0) {
		errno = 0;
		p->fts_info = FTS_SLNONE;
	} else {
		memset(p->fts_statp, 0, sizeof *p->fts_statp);
		p->fts_errno = why;
		p->fts_info = FTS_NS;
	}
}

/* A list of entries that grows at its end. */
struct list {
	FTSENT *head, **end;
	size_t count;
};

static void append(struct list *l, FTSENT *p)
{
	*l->end = p;
	l->end = &p->fts_link;
	l->count++;
}

/* sorted returns the list in the caller's order, or as it is if there is no
 * memory to sort it in. */
static FTSENT *sorted(FTS *t, struct list *l)
{
	FTSENT **array = t->fts_compar == NULL || l->count < 2 ? NULL : malloc(l->count * sizeof *array);
	size_t n = 0;

	if (array == NULL)
		return l->head;
	for (FTSENT *p = l->head; p != NULL; p = p->fts_link)
		array[n++] = p;
	qsort(array, n, sizeof *array, t->fts_compar);
	l->end = &l->head;
	for (size_t i = 0; i < n; i++)
		append(l, array[i]);
	*l->end = NULL;
	free(array);
	return l->head;
}

/* add makes an entry of a directory one of the list. */
static bool add(FTS *t, struct list *l, const struct dirent *d, bool names)
{
	bool directory = d->d_type == DT_DIR || d->d_type == DT_UNKNOWN;
	FTSENT *p = make(t->fts_cur, t->fts_cur->fts_path, d->d_name);

	if (p == NULL)
		return false;
	if (names || (option(t, FTS_NOSTAT) && option(t, FTS_PHYSICAL) && !directory))
		p->fts_info = FTS_NSOK;
	else
		look(t, p, false);
	append(l, p);
	return true;
}

/* children lists the current directory. Without any, or with an error if it is
 * for reading on, fts_info of the directory says so. */
static FTSENT *children(FTS *t, bool names, bool reading)
{
	FTSENT *p = t->fts_cur;
	struct list l = {NULL, &l.head, 0};
	DIR *stream = opendir(p->fts_accpath);
	bool good = true;

	if (stream == NULL) {
		if (reading) {
			p->fts_info = FTS_DNR;
			p->fts_errno = errno;
		}
		return NULL;
	}
	for (struct dirent *d; good && (d = readdir(stream)) != NULL;)
		if (option(t, FTS_SEEDOT) || !is_dot(d->d_name))
			good = add(t, &l, d, names);
	if (!good) {
		p->fts_info = FTS_ERR;
		p->fts_errno = errno;
		t->fts_options |= FTS_STOP;
		release_list(l.head);
		l.head = NULL;
	} else if (l.head == NULL && reading) {
		p->fts_info = FTS_DP;
	}
	closedir(stream);
	return sorted(t, &l);
}

static void release_children(FTS *t)
{
	release_list(t->fts_child);
	t->fts_child = NULL;
}

/* roots makes the entries of the paths that a walk begins with. */
static bool roots(FTS *t, FTSENT *top, char *const *paths)
{
	struct list l = {NULL, &l.head, 0};

	for (; *paths != NULL; paths++) {
		FTSENT *p = **paths == '\0' ? NULL : make(top, "", *paths);

		if (p == NULL) {
			errno = **paths == '\0' ? ENOENT : errno;
			release_list(l.head);
			return false;
		}
		look(t, p, option(t, FTS_COMFOLLOW));
		if (p->fts_info == FTS_DOT)
			p->fts_info = FTS_D;
		append(&l, p);
	}
	top->fts_link = sorted(t, &l);
	return true;
}

static bool any_ours(char *const *paths)
{
	struct nv_place at;

	for (; *paths != NULL; paths++)
		if (nv_route(AT_FDCWD, *paths, &at))
			return true;
	return false;
}

FTS *nv_fts_open(char *const *paths, int options, nv_fts_order *order)
{
	if (!nv_mounted || !any_ours(paths))
		return REAL(fts_open)(paths, options, order);
	if (options & ~FTS_OPTIONMASK) {
		errno = EINVAL;
		return NULL;
	}
	struct walk *w = calloc(1, sizeof *w);
	FTSENT *top = make(NULL, "", "");

	if (w != NULL && top != NULL) {
		w->fts.fts_compar = (int (*)(const void *, const void *))order;
		w->fts.fts_options = options | FTS_NOCHDIR | OURS;
		w->fts.fts_cur = w->top = top;
		top->fts_info = FTS_INIT;
		if (roots(&w->fts, top, paths))
			return &w->fts;
	}
	if (top != NULL)
		release(top);
	free(w);
	return NULL;
}

/* begin makes an entry that was a root's path one with the last name of it. */
static FTSENT *begin(FTS *t, FTSENT *p)
{
	char *slash = strrchr(p->fts_name, '/');

	if (slash != NULL && (slash != p->fts_name || slash[1] != '\0')) {
		p->fts_namelen = (unsigned short)strlen(slash + 1);
		memmove(p->fts_name, slash + 1, p->fts_namelen + 1u);
	}
	t->fts_dev = p->fts_dev;
	return p;
}

/* next goes to the next entry of a directory, or back up to that. */
static FTSENT *next(FTS *t, FTSENT *p)
{
	FTSENT *top = ((struct walk *)t)->top;

	do {
		FTSENT *gone = p, *parent = p->fts_parent;

		p = p->fts_link;
		t->fts_cur = p != NULL ? p : parent;
		if (gone != top)
			release(gone);
		if (p == NULL && (parent == NULL || parent == top)) {
			top->fts_link = NULL;
			t->fts_cur = NULL;
			errno = 0;
			return NULL;
		}
		if (p == NULL) {
			parent->fts_info = parent->fts_errno != 0 ? FTS_ERR : FTS_DP;
			return parent;
		}
		if (p->fts_level == FTS_ROOTLEVEL)
			return begin(t, p);
	} while (p->fts_instr == FTS_SKIP);
	if (p->fts_instr == FTS_FOLLOW) {
		p->fts_instr = FTS_NOINSTR;
		look(t, p, true);
	}
	return p;
}

/* descend goes to the first entry of a directory. */
static FTSENT *descend(FTS *t, FTSENT *p)
{
	if (option(t, FTS_NAMEONLY))
		release_children(t);
	t->fts_options &= ~FTS_NAMEONLY;
	FTSENT *first = t->fts_child != NULL ? t->fts_child : children(t, false, true);

	t->fts_child = NULL;
	if (first == NULL)
		return option(t, FTS_STOP) ? NULL : p;
	return t->fts_cur = first;
}

FTSENT *nv_fts_read(FTS *t)
{
	FTSENT *p = t->fts_cur;

	if (!option(t, OURS))
		return REAL(fts_read)(t);
	if (p == NULL || option(t, FTS_STOP))
		return NULL;
	int what = p->fts_instr;

	p->fts_instr = FTS_NOINSTR;
	if (what == FTS_AGAIN || (what == FTS_FOLLOW && (p->fts_info == FTS_SL || p->fts_info == FTS_SLNONE))) {
		look(t, p, what == FTS_FOLLOW);
		return p;
	}
	if (p->fts_info != FTS_D)
		return next(t, p);
	if (what != FTS_SKIP && (!option(t, FTS_XDEV) || p->fts_dev == t->fts_dev))
		return descend(t, p);
	release_children(t);
	p->fts_info = FTS_DP;
	return p;
}

FTSENT *nv_fts_children(FTS *t, int how)
{
	FTSENT *p = t->fts_cur;

	if (!option(t, OURS))
		return REAL(fts_children)(t, how);
	if (how != 0 && how != FTS_NAMEONLY) {
		errno = EINVAL;
		return NULL;
	}
	errno = 0;
	if (p == NULL || option(t, FTS_STOP))
		return NULL;
	if (p->fts_info == FTS_INIT)
		return p->fts_link;
	if (p->fts_info != FTS_D)
		return NULL;
	release_children(t);
	t->fts_options = how == 0 ? t->fts_options & ~FTS_NAMEONLY : t->fts_options | FTS_NAMEONLY;
	return t->fts_child = children(t, how == FTS_NAMEONLY, false);
}

int nv_fts_set(FTS *t, FTSENT *p, int what)
{
	if (!option(t, OURS))
		return REAL(fts_set)(t, p, what);
	if (what < 0 || what > FTS_SKIP) {
		errno = EINVAL;
		return 1;
	}
	p->fts_instr = (unsigned short)what;
	return 0;
}

int nv_fts_close(FTS *t)
{
	struct walk *w = (struct walk *)t;

	if (!option(t, OURS))
		return REAL(fts_close)(t);
	release_children(t);
	for (FTSENT *p = t->fts_cur; p != NULL && p != w->top;) {
		FTSENT *gone = p;

		p = p->fts_link != NULL ? p->fts_link : p->fts_parent;
		release(gone);
	}
	if (t->fts_cur == w->top)
		release_list(w->top->fts_link);
	release(w->top);
	free(w);
	return 0;
}
