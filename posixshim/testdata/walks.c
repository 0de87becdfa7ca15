/* Walks through trees in the directory argv[1]; prints what they meet, in an
 * order that does not depend on the directories'. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *dir;
static char *lines[1000];
static int count, stop;

static char *in(const char *name)
{
	static char buf[4][4096];
	static int next;
	char *p = buf[next++ % 4];

	snprintf(p, sizeof buf[0], "%s/%s", dir, name);
	return p;
}

static int line(const char *path, const struct stat *st, int type, int level, const char *base)
{
	size_t n = strlen(dir);

	if (strncmp(path, dir, n) != 0)
		n = 0;
	if (asprintf(&lines[count], "%s type %d level %d base %s kind %o there %d", path + n, type, level, base,
		     type == FTW_NS ? 0 : st->st_mode & S_IFMT, access(base, F_OK) == 0) < 0)
		return -1;
	count++;
	return 0;
}

static int seen(const char *path, const struct stat *st, int type, struct FTW *at)
{
	line(path, st, type, at->level, path + at->base);
	if (stop == 2 && strcmp(path + at->base, "b") == 0)
		return FTW_SKIP_SUBTREE;
	return stop == 1 && strcmp(path + at->base, "one") == 0 ? 17 : 0;
}

static int older(const char *path, const struct stat *st, int type)
{
	return line(path, st, type, 0, "");
}

static int order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void show(const char *what, int result)
{
	int e = errno;

	printf("%s: %d%s%s, %d\n", what, result, result == -1 ? " " : "", result == -1 ? strerrorname_np(e) : "",
	       stop == 1 ? 0 : count);
	qsort(lines, (size_t)count, sizeof *lines, order);
	for (int i = 0; i < count; i++) {
		if (stop != 1)
			printf("  %s\n", lines[i]);
		free(lines[i]);
	}
	count = 0;
}

int main(int argc, char **argv)
{
	char cwd[4096];

	if (argc != 2)
		return 2;
	dir = argv[1];
	mkdir(in("tree"), 0755);
	mkdir(in("tree/a"), 0755);
	mkdir(in("tree/a/b"), 0755);
	mkdir(in("tree/a/b/c"), 0755);
	close(open(in("tree/one"), O_CREAT | O_WRONLY, 0600));
	close(open(in("tree/a/b/two"), O_CREAT | O_WRONLY, 0600));
	if (symlink("one", in("tree/link")) | symlink("nowhere", in("tree/broken")) | symlink("..", in("tree/a/loop")))
		return 1;

	show("ftw", ftw(in("tree"), older, 5));
	show("nftw", nftw(in("tree"), seen, 5, 0));
	show("nftw physical", nftw(in("tree/"), seen, 5, FTW_PHYS));
	show("nftw physical depth", nftw(in("tree"), seen, 1, FTW_PHYS | FTW_DEPTH | FTW_MOUNT));
	show("nftw chdir", nftw(in("tree"), seen, 5, FTW_PHYS | FTW_CHDIR));
	show("nftw chdir depth", nftw(in("tree/a"), seen, 5, FTW_PHYS | FTW_CHDIR | FTW_DEPTH));
	show("nftw file", nftw(in("tree/one"), seen, 5, FTW_PHYS));
	show("nftw nothing", nftw(in("nothing"), seen, 5, FTW_PHYS));
	show("nftw broken", nftw(in("tree/broken"), seen, 5, 0));
	show("nftw flags", nftw(in("tree"), seen, 5, 4096));
	stop = 1;
	show("nftw stopped", nftw(in("tree"), seen, 5, FTW_PHYS));
	stop = 2;
	show("nftw actions", nftw(in("tree"), seen, 5, FTW_PHYS | FTW_ACTIONRETVAL));
	stop = 0;
	printf("%d\n", chdir(in("tree")));
	show("nftw relative", nftw("a", seen, 5, FTW_PHYS));
	show("nftw here", nftw(".", seen, 5, FTW_PHYS));
	printf("%s\n", getcwd(cwd, sizeof cwd) != NULL && strcmp(cwd, in("tree")) == 0 ? "still there" : cwd);
	return 0;
}
