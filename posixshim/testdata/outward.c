/* Follows symbolic links that lead out of the mount argv[1] to argv[2]. Signals arrive meanwhile. Their handler follows another
 * link, and each call must get the target of its own link. Then opens files of argv[1] that another process has open, while a
 * handler opens another of them. Signals also arrive while a call on a path outside the mount blocks, and a thread with a small
 * stack follows a long link. Prints "ok". */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#define CHECK(c)                                                                     \
	do                                                                           \
		if (!(c)) {                                                          \
			printf("line %d: %s (%s)\n", __LINE__, #c, strerror(errno)); \
			exit(1);                                                     \
		}                                                                    \
	while (0)

enum { MINE = 3, OTHER = 5, TIMES = 20 };

static const char *inside, *outside;
static volatile sig_atomic_t handled, wrong;

/* path returns dir/name in one of several buffers, which it uses in turns. */
static const char *path(const char *dir, const char *name)
{
	static char buffer[8][PATH_MAX];
	static unsigned next;
	char *p = buffer[next++ % 8];

	CHECK(snprintf(p, PATH_MAX, "%s/%s", dir, name) < PATH_MAX);
	return p;
}

static void put(const char *name, int size)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	CHECK(fd >= 0 && write(fd, "abcdefgh", (size_t)size) == size && close(fd) == 0);
}

/* ---- the handler ---- */

static char other[PATH_MAX];

static void follows(int signum)
{
	int saved = errno, fd = open(other, O_RDONLY);
	struct stat st;

	(void)signum;
	if (fd < 0 || fstat(fd, &st) != 0 || st.st_size != OTHER || close(fd) != 0)
		wrong++;
	if (stat(other, &st) != 0 || st.st_size != OTHER)
		wrong++;
	handled++;
	errno = saved;
}

static void every(long microseconds)
{
	struct itimerval often = {{0, microseconds}, {0, microseconds}};

	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

/* ---- calls on paths that lead out ---- */

static char file[PATH_MAX], link_[PATH_MAX], made[PATH_MAX], mine[PATH_MAX], dir[PATH_MAX]; /* paths through the link */
static char real_file[PATH_MAX], real_made[PATH_MAX]; /* the paths that they lead to */

static int size_of(int fd)
{
	struct stat st;

	CHECK(fd >= 0 && fstat(fd, &st) == 0);
	return (int)st.st_size;
}

static int closed(int fd)
{
	int size = size_of(fd);

	CHECK(close(fd) == 0);
	return size;
}

static int is(const char *name, mode_t type)
{
	struct stat st;

	return lstat(name, &st) == 0 && (st.st_mode & S_IFMT) == type;
}

static int opens(void) { return closed(open(file, O_RDONLY)) == MINE; }
static int opens_at(void) { return closed(openat(AT_FDCWD, file, O_RDONLY)) == MINE; }
static int opens_by_chdir(void)
{
	int ok = chdir(dir) == 0 && is("file", S_IFREG) && closed(open("file", O_RDONLY)) == MINE;

	return chdir("/") == 0 && ok;
}
static int creates(void) { return closed(creat(made, 0600)) == 0 && is(real_made, S_IFREG) && unlink(real_made) == 0; }
static int streams(void)
{
	FILE *f = fopen(file, "r");
	int ok = f != NULL && size_of(fileno(f)) == MINE;

	f = freopen(file, "r", f);
	ok = ok && f != NULL && size_of(fileno(f)) == MINE;
	return fclose(f) == 0 && ok;
}
static int stats(void)
{
	struct stat st, linked;

	return stat(file, &st) == 0 && st.st_size == MINE && lstat(link_, &linked) == 0 && linked.st_size == MINE;
}
static int stats_more(void)
{
	struct statx st;

	return statx(AT_FDCWD, file, 0, STATX_SIZE, &st) == 0 && st.stx_size == MINE;
}
static int reads_link(void)
{
	char to[16];

	return readlink(link_, to, sizeof to) == MINE;
}
static int resolves(void)
{
	char to[PATH_MAX];

	return realpath(file, to) != NULL && strcmp(to, real_file) == 0;
}
static int looks(void)
{
	return access(mine, F_OK) == 0;
}
static int lists(void)
{
	DIR *d = opendir(dir);
	int found = 0;

	CHECK(d != NULL);
	for (struct dirent *e; (e = readdir(d)) != NULL;)
		found += strcmp(e->d_name, "mine") == 0;
	return closedir(d) == 0 && found;
}
static int changes(void)
{
	struct stat st;
	struct timespec times[2] = {{7, 0}, {7, 0}};
	struct timeval older[2] = {{9, 0}, {9, 0}};
	int ok = chmod(file, 0640) == 0 && utimensat(AT_FDCWD, file, times, 0) == 0 && stat(real_file, &st) == 0 &&
		 (st.st_mode & 0777) == 0640 && st.st_mtime == 7;

	ok = ok && futimesat(AT_FDCWD, file, older) == 0 && stat(real_file, &st) == 0 && st.st_mtime == 9;
	return chmod(real_file, 0600) == 0 && utimensat(AT_FDCWD, real_file, NULL, 0) == 0 && ok;
}
static int cuts(void)
{
	struct stat st;
	int ok = truncate(file, MINE + 1) == 0 && stat(real_file, &st) == 0 && st.st_size == MINE + 1;

	return truncate(real_file, MINE) == 0 && ok;
}
static int removes(void)
{
	put(real_made, 1);
	return unlink(made) == 0 && !is(real_made, S_IFREG) && (put(real_made, 1), remove(made)) == 0 && !is(real_made, S_IFREG);
}
static int directories(void)
{
	return mkdir(made, 0700) == 0 && is(real_made, S_IFDIR) && rmdir(made) == 0 && !is(real_made, S_IFDIR);
}
static int links(void) { return symlink("x", made) == 0 && is(real_made, S_IFLNK) && unlink(real_made) == 0; }
static int nodes(void)
{
	return mknod(made, S_IFREG | 0600, 0) == 0 && is(real_made, S_IFREG) && unlink(real_made) == 0;
}

/* interrupt repeats a call until handlers have interrupted many of them. */
static void interrupt(const char *name, int (*call)(void))
{
	sigset_t before, after;

	CHECK(pthread_sigmask(SIG_SETMASK, NULL, &before) == 0);
	for (int n = 0; n < TIMES;) {
		int seen = handled;

		if (!call()) {
			printf("%s has met something else: %s\n", name, strerror(errno));
			exit(1);
		}
		CHECK(pthread_sigmask(SIG_SETMASK, NULL, &after) == 0);
		CHECK(memcmp(&before, &after, sizeof(unsigned long)) == 0);
		n += handled != seen;
	}
	if (wrong != 0) {
		printf("%s: the handler has met something else\n", name);
		exit(1);
	}
}

static void lead(const char *name, int size)
{
	char in[PATH_MAX], target[] = "12345678";

	snprintf(in, sizeof in, "%s", path(outside, name));
	CHECK(mkdir(in, 0700) == 0);
	put(path(in, "file"), size);
	target[size] = '\0';
	CHECK(symlink(target, path(in, "link")) == 0);
	CHECK(symlink(in, path(inside, name)) == 0);
}

static void led_out(void)
{
	static const struct {
		const char *name;
		int (*call)(void);
	} calls[] = {
		{"open", opens}, {"openat", opens_at}, {"chdir", opens_by_chdir}, {"creat", creates},
		{"fopen", streams}, {"stat", stats}, {"statx", stats_more}, {"readlink", reads_link},
		{"realpath", resolves}, {"access", looks}, {"opendir", lists}, {"chmod", changes},
		{"truncate", cuts}, {"unlink", removes}, {"mkdir", directories}, {"symlink", links},
		{"mknod", nodes},
	};

	snprintf(other, sizeof other, "%s", path(path(inside, "b"), "file"));
	every(300);
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		interrupt(calls[i].name, calls[i].call);
	every(0);
}

static void by_links(void)
{
	char in[PATH_MAX], out[PATH_MAX];

	snprintf(in, sizeof in, "%s", path(inside, "a"));
	snprintf(out, sizeof out, "%s", path(outside, "a"));
	snprintf(dir, sizeof dir, "%s", in);
	snprintf(file, sizeof file, "%s", path(in, "file"));
	snprintf(link_, sizeof link_, "%s", path(in, "link"));
	snprintf(made, sizeof made, "%s", path(in, "made"));
	snprintf(mine, sizeof mine, "%s", path(in, "mine"));
	CHECK(realpath(path(out, "file"), real_file) != NULL);
	snprintf(real_made, sizeof real_made, "%s", path(out, "made"));
}

/* A link that leads out of the mount and back into it. */
static int in_again(void) { return closed(open(file, O_RDONLY)) == MINE; }

static void led_back(void)
{
	CHECK(symlink(inside, path(outside, "back")) == 0);
	CHECK(symlink(path(outside, "back"), path(inside, "out")) == 0);
	put(path(inside, "back"), MINE);
	CHECK(symlink(path(inside, "back"), path(inside, "again")) == 0);
	snprintf(file, sizeof file, "%s", path(inside, "again"));
	every(300);
	interrupt("open of what is in again", in_again);
	every(0);
}

/* ---- a call that blocks ---- */

static void waits(void)
{
	CHECK(mkfifo(path(outside, "fifo"), 0600) == 0);
	CHECK(symlink(path(outside, "fifo"), path(inside, "fifo")) == 0);
	every(20000);
	CHECK(open(path(inside, "fifo"), O_RDONLY) == -1 && errno == EINTR);
	every(0);
}

/* ---- a small stack ---- */

static void *follows_long(void *name)
{
	struct stat st;
	char mark[1];
	int fd = open(name, O_RDONLY);
	int ok = fd >= 0 && read(fd, mark, 1) == 1 && close(fd) == 0 && stat(name, &st) == 0;

	return ok ? NULL : name;
}

static void little_stack(void)
{
	char to[3501];
	pthread_attr_t attr;
	pthread_t thread;
	void *failed;
	size_t n = (size_t)snprintf(to, sizeof to, "%s", outside);
	static const char end[] = "/a/file";

	while (n + 2 + sizeof end < sizeof to) {
		memcpy(to + n, "/.", 2);
		n += 2;
	}
	memcpy(to + n, end, sizeof end);
	CHECK(symlink(to, path(inside, "long")) == 0);
	CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 16 << 10) == 0);
	CHECK(pthread_create(&thread, &attr, follows_long, (void *)path(inside, "long")) == 0);
	CHECK(pthread_join(thread, &failed) == 0 && failed == NULL);
}

/* ---- files that another process has ---- */

static int reads(void)
{
	char got[8];
	int fd = open(file, O_RDONLY);

	return fd >= 0 && read(fd, got, sizeof got) == MINE && closed(fd) == MINE;
}

/* The executed program inherits the descriptor. */
static int hands_on(void)
{
	char got[2 * MINE];
	int ends[2], fd = open(file, O_RDONLY), status;

	CHECK(fd >= 0 && pipe(ends) == 0);
	pid_t pid = fork();

	if (pid == 0) {
		dup2(fd, 0);
		dup2(ends[1], 1);
		execlp("cat", "cat", NULL);
		_exit(127);
	}
	close(ends[1]);
	ssize_t n;

	do
		n = read(ends[0], got, sizeof got);
	while (n < 0 && errno == EINTR);
	close(ends[0]);
	while (waitpid(pid, &status, 0) < 0)
		CHECK(errno == EINTR);
	CHECK(close(fd) == 0 && status == 0);
	return n == MINE;
}

static int maps(void)
{
	int fd = open(file, O_RDONLY);
	char *p = mmap(NULL, MINE, PROT_READ, MAP_SHARED, fd, 0);
	int ok = p != MAP_FAILED && p[MINE - 1] != '\0' && p[MINE] == '\0';

	return munmap(p, MINE) == 0 && close(fd) == 0 && ok;
}

static void maps_other(int signum)
{
	int saved = errno, fd = open(other, O_RDONLY);
	char *p = mmap(NULL, OTHER, PROT_READ, MAP_PRIVATE, fd, 0);

	(void)signum;
	if (p == MAP_FAILED || p[OTHER - 1] == '\0' || p[OTHER] != '\0' || munmap(p, OTHER) != 0 || close(fd) != 0)
		wrong++;
	handled++;
	errno = saved;
}

static void served(void)
{
	struct sigaction act = {.sa_handler = maps_other};
	int status;

	snprintf(file, sizeof file, "%s", path(inside, "mine"));
	snprintf(other, sizeof other, "%s", path(inside, "other"));
	put(file, MINE);
	put(other, OTHER);
	int kept = open(file, O_RDWR);
	pid_t pid = fork();

	if (pid == 0) {
		CHECK(sigaction(SIGALRM, &act, NULL) == 0);
		every(1000);
		interrupt("open in a child", reads);
		interrupt("mmap in a child", maps);
		interrupt("a descriptor in a child", hands_on);
		every(0);
		by_links();
		act.sa_handler = follows;
		CHECK(sigaction(SIGALRM, &act, NULL) == 0);
		led_out();
		exit(0);
	}
	CHECK(kept >= 0 && waitpid(pid, &status, 0) == pid);
	if (status != 0)
		exit(1);
	CHECK(close(kept) == 0);
}

int main(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = follows};

	if (argc != 3)
		return 2;
	inside = argv[1];
	outside = argv[2];
	setbuf(stdout, NULL);
	lead("a", MINE);
	lead("b", OTHER);
	put(path(path(outside, "a"), "mine"), 0);
	by_links();
	CHECK(sigaction(SIGALRM, &act, NULL) == 0);
	led_out();
	waits();
	little_stack();
	led_back();
	served();
	printf("ok\n");
	return 0;
}
