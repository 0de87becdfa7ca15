/* Names and directories. */
#include "run.h"

#include <limits.h>

CALL(unlink, BY(unlink(P(0)), unlink(P(0)), unlinkat(here, P(0), 0)))
CALL(unlinkat, unlinkat(F(0), R(1), (int)N(2)))
CALL(remove, remove(P(0)))
CALL(rename, BY(rename(P(0), P(1)), rename(P(0), P(1)), renameat(here, P(0), here, P(1))))
CALL(renameat, renameat(F(0), R(1), F(2), R(3)))
CALL(renameat2, renameat2(F(0), R(1), F(2), R(3), (unsigned)N(4)))
CALL(link, BY(link(P(0), P(1)), link(P(0), P(1)), linkat(here, P(0), here, P(1), 0)))
CALL(linkat, linkat(F(0), R(1), F(2), R(3), (int)N(4)))
CALL(symlink, BY(symlink(S(0), P(1)), symlink(S(0), P(1)), symlinkat(S(0), here, P(1))))
CALL(symlinkat, symlinkat(S(0), F(1), R(2)))
CALL(mkdir, BY(mkdir(P(0), words() > 1 ? (mode_t)N(1) : 0755), mkdir(P(0), words() > 1 ? (mode_t)N(1) : 0755), mkdirat(here, P(0), words() > 1 ? (mode_t)N(1) : 0755)))
CALL(mkdirat, mkdirat(F(0), R(1), (mode_t)N(2)))
CALL(rmdir, BY(rmdir(P(0)), rmdir(P(0)), unlinkat(here, P(0), AT_REMOVEDIR)))
CALL(mknod, BY(mknod(P(0), (mode_t)N(1), 0), mknod(P(0), (mode_t)N(1), 0), mknodat(here, P(0), (mode_t)N(1), 0)))
CALL(mkfifo, BY(mkfifo(P(0), (mode_t)N(1)), mkfifo(P(0), (mode_t)N(1)), mkfifoat(here, P(0), (mode_t)N(1))))

static void target(ssize_t n)
{
	if (n < 0) {
		number(n);
		return;
	}
	memmove(buffer + 8, buffer, (size_t)n);
	buffer[8 + n] = '\0';
	say("%zd ", buffer[8] == '/' ? -1 : n); /* an absolute one is as long as the path to it */
	path(buffer + 8);
}

/* readlink PATH [SIZE] */
VERB(readlink)
{
	size_t n = words() > 1 ? (size_t)N(1) : PATH_MAX;

	target(BY(readlink(P(0), buffer, n), readlink(P(0), buffer, n), readlinkat(here, P(0), buffer, n)));
}

VERB(readlinkat) { target(readlinkat(F(0), R(1), buffer, PATH_MAX)); }

VERB(realpath) { path(BY(realpath(P(0), buffer), realpath(P(0), buffer), canonicalize_file_name(P(0)))); }

/* chain N: N symbolic links, each to the one before, the first to x */
VERB(chain)
{
	char from[32] = "x", to[32];
	int r = 0;

	for (int i = 1; i <= N(0) && r == 0; i++, strcpy(from, to)) {
		sprintf(to, "l%d", i);
		r = symlink(from, to);
	}
	number(r);
}

/* The six letters of a template that are invented read ??????. */
static void invented(int fd, char *name, const char *template)
{
	const char *x = strstr(template, "XXXXXX");
	size_t at = x != NULL ? (size_t)(x - template) : 0;

	descriptor(fd);
	if (fd < 0)
		return;
	say(" %s", memcmp(name + at, "XXXXXX", 6) != 0 ? "" : "as it was ");
	memcpy(name + at, "??????", 6);
	path(name);
}

static char *template(void) { return strcpy(buffer, P(0)); }
VERB(mkstemp) { char *t = template(); invented(BY(mkstemp, mkstemp64, mkstemp)(t), t, P(0)); }
VERB(mkostemp) { char *t = template(); invented(BY(mkostemp, mkostemp64, mkostemp)(t, (int)N(1)), t, P(0)); }
VERB(mkstemps) { char *t = template(); invented(BY(mkstemps, mkstemps64, mkstemps)(t, (int)N(1)), t, P(0)); }
VERB(mkostemps) { char *t = template(); invented(BY(mkostemps, mkostemps64, mkostemps)(t, (int)N(1), (int)N(2)), t, P(0)); }
VERB(mkdtemp) { pointer(mkdtemp(template())); }

/* ---- the working directory ---- */

CALL(chdir, chdir(P(0)))
CALL(fchdir, fchdir(F(0)))
/* getcwd [SIZE]: with a buffer of that size, or one that is allocated */
VERB(getcwd)
{
	char *p = words() == 0 ? getcwd(NULL, 0) : word_is(0, "NAME") ? get_current_dir_name() : getcwd(buffer, (size_t)N(0));

	path(p);
	if (p != buffer)
		free(p);
}

/* ---- directories ---- */

VERB(opendir) { directory(opendir(P(0))); }
VERB(fdopendir) { directory(fdopendir(F(0))); }
VERB(closedir) { number(closedir(D(0))); forget(0); }
VERB(dirfd) { number(dirfd(D(0)) >= 0 ? 0 : -1); }
VERB(rewinddir) { rewinddir(D(0)); say("done"); }

static const char *type(const struct dirent *e)
{
	return e->d_type == DT_DIR ? "/" : e->d_type == DT_LNK ? "@" : e->d_type == DT_REG ? "" : "?";
}

/* readdir D: whether there is one more entry; the order is the system's own */
VERB(readdir)
{
	errno = 0;
	const struct dirent *e = BY(readdir(D(0)), (struct dirent *)readdir64(D(0)), readdir(D(0)));

	say("%s", e != NULL ? "an entry" : errno != 0 ? error_name() : "end");
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* rest prints the entries from here on, sorted, with their types. */
static void rest(DIR *d)
{
	static char *names[5000];
	int n = 0;
	const struct dirent *e;

	errno = 0;
	while ((e = BY(readdir(d), (struct dirent *)readdir64(d), readdir(d))) != NULL && n < 5000)
		if (asprintf(&names[n], "%s%s", e->d_name, type(e)) >= 0)
			n++;
	int error = errno;

	qsort(names, (size_t)n, sizeof *names, by_name);
	if (n > 20)
		say("%d entries", n);
	for (int i = 0; i < n; i++) {
		if (n <= 20)
			say("%s%s", i > 0 ? " " : "", names[i]);
		free(names[i]);
	}
	if (error != 0)
		say(" %s", strerrorname_np(error));
}

VERB(rest) { rest(D(0)); }

/* ls PATH */
VERB(ls)
{
	DIR *d = opendir(P(0));

	if (d == NULL) {
		number(-1);
		return;
	}
	rest(d);
	closedir(d);
}

VERB(readdir_r)
{
	struct dirent e, *found;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	int r = BY(readdir_r(D(0), &e, &found), readdir64_r(D(0), (struct dirent64 *)&e, (struct dirent64 **)&found), readdir_r(D(0), &e, &found));
#pragma GCC diagnostic pop

	if (r != 0)
		error_number(r);
	else
		say("%s", found == NULL ? "end" : "an entry");
}

/* seekback D: reads one, notes the place, reads on, goes back: the same again? */
VERB(seekback)
{
	char name[256];

	readdir(D(0));
	long at = telldir(D(0));
	const struct dirent *e = readdir(D(0));

	snprintf(name, sizeof name, "%s", e != NULL ? e->d_name : "end");
	while (readdir(D(0)) != NULL)
		;
	seekdir(D(0), at);
	e = readdir(D(0));
	say("%s", strcmp(e != NULL ? e->d_name : "end", name) == 0 ? "the same" : "another");
}

/* many N: N files; with `gone`, removes them while it reads their names */
VERB(many)
{
	char name[32];
	int r = 0;

	for (int i = 0; i < N(0) && r >= 0; i++) {
		sprintf(name, "n%d", i);
		r = open(name, O_CREAT | O_WRONLY, 0644);
		close(r);
	}
	number(r < 0 ? -1 : 0);
}

VERB(empty)
{
	DIR *d = opendir(P(0));
	const struct dirent *e;
	int n = 0;

	while (d != NULL && (e = readdir(d)) != NULL)
		n += e->d_name[0] != '.' && unlinkat(dirfd(d), e->d_name, 0) == 0;
	if (d != NULL)
		closedir(d);
	number(n);
}

VERB(getdents64) { ssize_t n = getdents64(F(0), buffer, (size_t)N(1)); number(n > 0 ? 1 : n); }
