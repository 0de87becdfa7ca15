/* Uses two mounts: argv[1] for writing, and argv[2], which has the same files, for reading. With argv[3] this is the executed
 * program: argv[3] and argv[4] are descriptors of a file and of a directory of the second mount. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

static char name[2][PATH_MAX];

/* at returns a path of a mount. */
static const char *at(int mount, const char *path)
{
	static char paths[4][2 * PATH_MAX];
	static int next;
	char *p = paths[next++ % 4];

	snprintf(p, sizeof *paths, "%s/%s", name[mount], path);
	return p;
}

static void say(const char *what, long result)
{
	printf("%s: %s\n", what, result < 0 ? strerrorname_np(errno) : "ok");
	fflush(stdout);
}

static void reads(const char *what, int fd, size_t n)
{
	char buf[64] = "";
	ssize_t got = fd < 0 ? -1 : read(fd, buf, n);

	printf("%s: %s\n", what, got < 0 ? strerrorname_np(errno) : buf);
	fflush(stdout);
}

static void where(const char *what)
{
	char path[PATH_MAX], link[PATH_MAX] = "";

	if (readlink("/proc/self/fd/9", link, sizeof link - 1) < 0)
		strcpy(link, "none");
	printf("%s: in %s, real %s, 9 is %s\n", what, getcwd(path, sizeof path), realpath("f", NULL), link);
	fflush(stdout);
}

static void names(void)
{
	int second = open(name[1], O_RDONLY | O_DIRECTORY);

	say("rename into the other", rename(at(0, "d/f"), at(1, "g")));
	say("rename out of it", rename(at(1, "d/f"), at(0, "g")));
	say("renameat", renameat(second, "d/f", AT_FDCWD, at(0, "g")));
	say("link", link(at(0, "d/f"), at(1, "g")));
	say("linkat", linkat(second, "d/f", AT_FDCWD, at(0, "g"), 0));
	say("unlink", unlink(at(1, "d/f")));
	say("create", open(at(1, "new"), O_CREAT | O_WRONLY, 0600));
	say("write", open(at(1, "d/f"), O_WRONLY));
	reads("relative to a directory of the other", openat(second, "d/f", O_RDONLY), 64);
	reads("absolute in spite of one", openat(second, at(0, "d/f"), O_RDONLY), 64);
	close(second);
}

static void devices(void)
{
	struct stat first, second, f;
	struct statvfs vfs[2];

	stat(at(0, "d/f"), &first);
	stat(at(1, "d/f"), &second);
	statvfs(name[0], &vfs[0]);
	statvfs(at(1, "d/f"), &vfs[1]);
	fstat(open(at(1, "d/f"), O_RDONLY), &f);
	printf("devices differ: %d, f_fsid: %d, fstat agrees: %d\n", first.st_dev != second.st_dev, vfs[0].f_fsid != vfs[1].f_fsid,
	       f.st_dev == second.st_dev && f.st_ino == second.st_ino);
}

static void links(void)
{
	char real[PATH_MAX];
	struct stat st, second;

	stat(at(1, "d/f"), &second);
	say("symlink", symlink(at(1, "d/f"), at(0, "link")));
	reads("link", open(at(0, "link"), O_RDONLY), 64);
	stat(at(0, "link"), &st);
	printf("link leads to %s, on its device: %d\n", realpath(at(0, "link"), real), st.st_dev == second.st_dev);
	say("link to the link", symlink(at(0, "link"), at(0, "twice")));
	reads("twice", open(at(0, "twice"), O_RDONLY), 64);
}

static void descriptors(void)
{
	int a = open(at(0, "d/f"), O_RDWR), b = open(at(1, "d/f"), O_RDONLY);

	printf("both locked: %d\n", flock(a, LOCK_EX | LOCK_NB) == 0 && flock(b, LOCK_EX | LOCK_NB) == 0);
	char *shown = mmap(NULL, 4096, PROT_READ, MAP_SHARED, b, 0);

	printf("mapped: %.3s\n", shown == MAP_FAILED ? "no" : shown);
	reads("first", a, 2);
	dup2(b, a);
	reads("after dup2", dup(a), 2);
	reads("the same offset", b, 64);
	close(a);
	close(b);
}

static void directories(void)
{
	say("chdir", chdir(at(0, "d")));
	where("first");
	say("chdir", chdir(at(1, "d")));
	where("second");
	reads("relative", open("f", O_RDONLY), 64);
	char path[2 * PATH_MAX];

	snprintf(path, sizeof path, "../..%s/d/f", name[0]);
	reads("by way of the root", open(path, O_RDONLY), 64);
	fflush(stdout);
	say("system", system("cat f; pwd") == 0 ? 0 : -1);
}

static void children(int file, int directory)
{
	int status;

	if (fork() == 0) {
		reads("child, of its parent's", file, 1);
		reads("child, relative", open("f", O_RDONLY), 64);
		reads("child, by its path", open(at(1, "d/f"), O_RDONLY), 64);
		reads("child, in a directory", openat(directory, "d/f", O_RDONLY), 64);
		say("child, rename", rename(at(0, "d/f"), at(1, "g")));
		where("child");
		_exit(0);
	}
	wait(&status);
	printf("child %d\n", status);
	fflush(stdout);
}

static void executed(int file, int directory)
{
	where("executed");
	reads("executed, of the one before", file, 64);
	reads("executed, relative", open("f", O_RDONLY), 64);
	reads("executed, in a directory", openat(directory, "d/f", O_RDONLY), 64);
	struct stat st, path;

	fstat(file, &st);
	stat(at(1, "d/f"), &path);
	printf("executed, the same file: %d\n", st.st_dev == path.st_dev && st.st_ino == path.st_ino);
}

int main(int argc, char **argv)
{
	strcpy(name[0], argv[1]);
	strcpy(name[1], argv[2]);
	if (argc > 3)
		return executed(atoi(argv[3]), atoi(argv[4])), 0;
	mkdir(at(0, "d"), 0700);
	int fd = open(at(0, "d/f"), O_CREAT | O_WRONLY, 0600);

	say("write", write(fd, "content", 7));
	close(fd);
	names();
	devices();
	links();
	descriptors();
	int file = dup2(open(at(1, "d/f"), O_RDONLY), 9), directory = open(name[1], O_RDONLY | O_DIRECTORY);
	char numbers[2][12];

	directories();
	children(file, directory);
	snprintf(numbers[0], sizeof *numbers, "%d", file);
	snprintf(numbers[1], sizeof *numbers, "%d", directory);
	execl(argv[0], argv[0], argv[1], argv[2], numbers[0], numbers[1], NULL);
	return 1;
}
