/* Uses rare flags and long names in the directory argv[1]. Prints the results of the calls. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *dir;

#define P(expr) print(#expr, (long)(expr))

static long print(const char *what, long value)
{
	int e = errno;

	printf("%s = %ld%s%s\n", what, value, value == -1 ? " " : "", value == -1 ? strerrorname_np(e) : "");
	return value;
}

static char *in(const char *name)
{
	static char buf[4][20000];
	static int next;
	char *p = buf[next++ % 4];

	snprintf(p, sizeof buf[0], "%s/%s", dir, name);
	return p;
}

static void flags(void)
{
	struct stat st;
	struct statx stx;
	char buf[8];
	int fd = open(in("f"), O_RDWR | O_CREAT, 0600);

	P(write(fd, "content", 7));
	int path = open(in("f"), O_PATH);

	P(read(path, buf, 1));
	P(write(path, buf, 1));
	P(fstat(path, &st));
	P(st.st_size);
	P(fcntl(path, F_GETFL) & O_PATH ? 1 : 0);
	P(fchmod(path, 0600));
	P(ftruncate(path, 0));
	P(lseek(path, 0, SEEK_SET));
	P(fsync(path));
	P(close(path));
	P(open(in("new"), O_RDWR | O_CREAT | O_DIRECTORY, 0600) == -1);
	P(open(in("f"), O_RDONLY | O_CREAT | O_EXCL, 0600));
	P(open(in("f/"), O_RDONLY));
	P(open(in("none/"), O_RDWR | O_CREAT, 0600));
	P(open("", O_RDONLY));
	P(statx(AT_FDCWD, in("f"), 0x80000, STATX_ALL, &stx));
	P(fstatat(AT_FDCWD, in("f"), &st, 0x80000));
	P(faccessat(AT_FDCWD, in("f"), 77, 0));
	P(access(in("f"), F_OK));
	P(rename(in("f"), in("g")));
	P(renameat2(AT_FDCWD, in("g"), AT_FDCWD, in("f"), RENAME_NOREPLACE));
	P(close(open(in("h"), O_RDWR | O_CREAT, 0600)));
	P(renameat2(AT_FDCWD, in("f"), AT_FDCWD, in("h"), RENAME_NOREPLACE));
	P(renameat2(AT_FDCWD, in("f"), AT_FDCWD, in("h"), RENAME_EXCHANGE));
	P(stat(in("h"), &st));
	P(st.st_size);
	P(renameat2(AT_FDCWD, in("f"), AT_FDCWD, in("none"), RENAME_EXCHANGE));
	P(renameat2(AT_FDCWD, in("f"), AT_FDCWD, in("h"), RENAME_EXCHANGE | RENAME_NOREPLACE));
	P(unlink(in("none/")));
	P(mkdir(in("sub/"), 0700));
	P(rmdir(in("sub/")));
	P(rmdir(in(".")));
	P(unlink(in("h/")));
	P(linkat(fd, "", AT_FDCWD, in("linked"), 0));
	P(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
	P(fcntl(fd, F_GETFL) & (O_APPEND | O_NONBLOCK));
	P(pwrite(fd, "end", 3, 0));
	P(fstat(fd, &st));
	P(st.st_size);
	P(close(fd));
}

static void long_names(void)
{
	char name[300], path[10000];
	struct stat st;

	memset(name, 'n', sizeof name);
	name[255] = 0;
	P(close(open(in(name), O_RDWR | O_CREAT, 0600)));
	P(stat(in(name), &st));
	P(unlink(in(name)));
	name[255] = 'n';
	name[256] = 0;
	P(open(in(name), O_RDWR | O_CREAT, 0600));
	P(stat(in(name), &st));
	P(mkdir(in(name), 0700));
	P(rename(in("h"), in(name)));
	P(symlink("x", in(name)));
	P(unlink(in(name)));
	for (int i = 0; i < 5000; i += 2)
		memcpy(path + i, "./", 3);
	P(stat(in(path), &st));
	P(open(in(path), O_RDONLY));
	P(mkdir(in(path), 0700));
	path[3000] = 0;
	P(stat(in(path), &st));
}

static void positions(void)
{
	char name[32];
	long places[300];
	char *names[300];
	int n = 0, wrong = 0;

	P(mkdir(in("dir"), 0700));
	for (int i = 0; i < 290; i++) {
		snprintf(name, sizeof name, "dir/%d", i);
		close(open(in(name), O_CREAT | O_WRONLY, 0600));
	}
	DIR *d = opendir(in("dir"));

	for (struct dirent *e;; n++) {
		places[n] = telldir(d);
		e = readdir(d);
		if (e == NULL)
			break;
		names[n] = strdup(e->d_name);
	}
	P(n);
	for (int i = 0; i < n; i++) {
		seekdir(d, places[n - 1 - i]);
		wrong += strcmp(readdir(d)->d_name, names[n - 1 - i]) != 0;
	}
	P(wrong);
	P(closedir(d));
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	dir = argv[1];
	umask(022);
	flags();
	long_names();
	positions();
	return 0;
}
