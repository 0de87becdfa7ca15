/* Executes programs and scripts in the directory argv[1] in every way.
 *
 *   executes DIR ELSEWHERE make       creates the files; some are in ELSEWHERE
 *   executes DIR ELSEWHERE fork       executes them in children of fork
 *   executes DIR ELSEWHERE vfork      executes them in children of vfork; DIR was not used before
 *   executes DIR ELSEWHERE search     searches PATH for them
 *   executes DIR ELSEWHERE odd        cases that only some calls have
 *
 * All calls find a file in the same way, so each call executes only some of the files. With EXECUTE=all in the environment it
 * executes all of them.
 *
 * With other arguments, or none, this is the executed program, which prints its arguments, environment and descriptors. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *dir, *elsewhere;

/* hide prints a text with "DIR" and "ELSEWHERE" in place of the paths of the directories. The kernel may know DIR by another
 * path. */
static void hide(const char *text)
{
	const char *d = getenv("DIR"), *e = getenv("ELSEWHERE"), *v = getenv("NVMECR_EXPORT");
	char view[PATH_MAX] = "";

	if (v != NULL && *v != '\0')
		snprintf(view, sizeof view, "%s/self", v);

	while (*text != '\0')
		if (*view != '\0' && strncmp(text, view, strlen(view)) == 0) {
			printf("DIR");
			text += strlen(view);
		} else if (d != NULL && strncmp(text, d, strlen(d)) == 0) {
			printf("DIR");
			text += strlen(d);
		} else if (e != NULL && strncmp(text, e, strlen(e)) == 0) {
			printf("ELSEWHERE");
			text += strlen(e);
		} else {
			putchar(*text++);
		}
}

/* say implements the executed program. */
static int say(int argc, char **argv)
{
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *e;
	char comm[32] = "";
	FILE *f = fopen("/proc/self/comm", "r");

	printf("executed");
	for (int i = 0; i < argc; i++) {
		printf(" [");
		if (strncmp(argv[i], "yyy", 3) == 0) /* the length depends on the length of DIR */
			printf("%d", getenv("DIR") == NULL ? 0 : (int)(strlen(getenv("DIR")) + strlen(argv[i])));
		else
			hide(argv[i]);
		printf("]");
	}
	if (getenv("SAID") != NULL)
		printf(" SAID=%s", getenv("SAID"));
	while (fds != NULL && (e = readdir(fds)) != NULL)
		if (atoi(e->d_name) > 2 && atoi(e->d_name) != dirfd(fds) && (f == NULL || atoi(e->d_name) != fileno(f)))
			printf(" descriptor %s", e->d_name);
	/* The name of a process that executes a script or a descriptor differs between file systems. A process without the library
	 * has the name of the copy. */
	if (argc == 3 && strcmp(argv[1], "one") == 0 && getenv("DIR") != NULL && f != NULL && fgets(comm, sizeof comm, f) != NULL)
		printf(" is %s", comm);
	if (strchr(comm, '\n') == NULL)
		printf("\n");
	return 107;
}

/* ---- the files ---- */

static void put(const char *where, const char *name, const char *content, mode_t mode)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/%s", where, name);
	int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);

	if (fd < 0 || write(fd, content, strlen(content)) != (ssize_t)strlen(content) || fchmod(fd, mode) != 0 || close(fd) != 0)
		perror(path);
}

static void putf(const char *where, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void putf(const char *where, const char *name, const char *format, ...)
{
	char content[PATH_MAX];
	va_list ap;

	va_start(ap, format);
	vsnprintf(content, sizeof content, format, ap);
	va_end(ap);
	put(where, name, content, 0755);
}

static void copy_self(const char *name, mode_t mode)
{
	char path[PATH_MAX], block[1 << 16];
	ssize_t n;
	int in = open("/proc/self/exe", O_RDONLY);

	snprintf(path, sizeof path, "%s/%s", dir, name);
	int out = open(path, O_CREAT | O_WRONLY, 0600);

	while ((n = read(in, block, sizeof block)) > 0)
		if (write(out, block, (size_t)n) != n)
			perror(path);
	fchmod(out, mode);
	close(in);
	if (close(out) != 0)
		perror(path);
}

static void at(const char *name, int (*make)(const char *path, const char *to), const char *to)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	if (make(path, to) != 0)
		perror(path);
}

static int make_directory(const char *path, const char *to)
{
	(void)to;
	return mkdir(path, 0755);
}

static int make_link(const char *path, const char *to)
{
	return symlink(to, path);
}

static int make(void)
{
	char line[600];

	copy_self("hi", 0755);
	copy_self("a-name-longer-than-what-the-kernel-keeps", 0755);
	copy_self("unmarked", 0644);
	copy_self("special", 06755);
	at("sub", make_directory, NULL);
	at("bin", make_directory, NULL);
	copy_self("bin/tool", 0755);
	copy_self("bin/both", 0644);
	at("link", make_link, "sub/../hi");
	at("out", make_link, "/bin/echo");
	at("astray", make_link, "/nonexistent/program");
	at("loop", make_link, "loop");
	at("to-script", make_link, "script");
	put(dir, "empty", "", 0755);
	put(dir, "text", "echo text \"$@\"\nexit 104\n", 0755);
	put(dir, "truncated", "\177ELF\2\1\1", 0755);
	put(dir, "script", "#!/bin/sh\necho script of $# \"${1##*/}\"\nexit 105\n", 0755);
	put(dir, "strict", "#! /bin/sh -e \necho strict $-\nfalse\necho not here\n", 0755);
	put(dir, "nothing", "#!\n", 0755);
	put(dir, "blank", "#! \t \nx\n", 0755);
	put(dir, "missing", "#!/nonexistent/interpreter\n", 0755);
	put(dir, "unmarked-script", "#!/bin/sh\n", 0644);
	put(dir, "of-a-directory", "#!/\n", 0755);
	putf(dir, "of-unmarked", "#!%s/unmarked\n", dir);
	putf(dir, "of-subdirectory", "#!%s/sub\n", dir);
	putf(dir, "of-empty", "#!%s/empty\n", dir);
	putf(dir, "1", "#!%s/hi  one  argument  \nrest", dir);
	putf(dir, "2", "#!%s/1", dir);
	putf(dir, "3", "#!%s/2\tthree\n", dir);
	putf(dir, "4", "#!%s/3 four\n", dir);
	putf(dir, "5", "#!%s/4\n", dir);
	putf(dir, "6", "#!%s/5\n", dir);
	putf(dir, "7", "#!%s/6\n", dir);
	putf(dir, "self", "#!%s/self\n", dir);
	putf(elsewhere, "of-hi", "#!%s/hi here\n", dir);
	putf(elsewhere, "of-1", "#!%s/1\n", dir);
	putf(elsewhere, "of-script", "#!%s/script\n", dir);
	putf(elsewhere, "of-missing", "#!%s/nonexistent\n", dir);
	putf(dir, "of-elsewhere", "#!%s/of-hi\n", elsewhere);
	memset(line, 'y', sizeof line);
	memcpy(line, "#!/bin/", 7);
	line[599] = '\0';
	put(dir, "long-interpreter", line, 0755);
	snprintf(line, sizeof line, "#!%s/hi ", dir);
	line[strlen(line)] = 'y';
	put(dir, "long-argument", line, 0755);
	printf("made\n");
	return 0;
}

/* ---- the calls ---- */

typedef void how(const char *path, char *const argv[]);

static char *said[1000]; /* the environment, with SAID added */

static void by_execve(const char *path, char *const argv[])
{
	execve(path, argv, said);
}

static void by_execv(const char *path, char *const argv[])
{
	execv(path, argv);
}

static void by_execvp(const char *path, char *const argv[])
{
	execvp(path, argv);
}

static void by_execvpe(const char *path, char *const argv[])
{
	execvpe(path, argv, said);
}

static void by_execl(const char *path, char *const argv[])
{
	execl(path, argv[0], argv[1], argv[2], (char *)NULL);
}

static void by_execle(const char *path, char *const argv[])
{
	execle(path, argv[0], argv[1], argv[2], (char *)NULL, said);
}

static void by_execlp(const char *path, char *const argv[])
{
	execlp(path, argv[0], argv[1], argv[2], (char *)NULL);
}

static void by_number(const char *path, char *const argv[])
{
	syscall(SYS_execve, path, argv, said);
}

static void by_execveat(const char *path, char *const argv[])
{
	execveat(AT_FDCWD, path, argv, said, 0);
}

static void by_execveat_nofollow(const char *path, char *const argv[])
{
	execveat(AT_FDCWD, path, argv, said, AT_SYMLINK_NOFOLLOW);
}

/* exit_like exits with the wait status of a child. */
static void exit_like(int status)
{
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void spawned(pid_t pid, int error)
{
	int status;

	errno = error;
	if (error == 0 && waitpid(pid, &status, 0) == pid)
		exit_like(status);
}

static void by_spawn(const char *path, char *const argv[])
{
	pid_t pid;

	errno = 0;
	int error = posix_spawn(&pid, path, NULL, NULL, argv, said);

	spawned(pid, error != 0 ? error : errno);
}

static void by_spawnp(const char *path, char *const argv[])
{
	pid_t pid;

	spawned(pid, posix_spawnp(&pid, path, NULL, NULL, argv, said));
}

/* File actions that close all descriptors before the program is executed. */
static void by_spawn_actions(const char *path, char *const argv[])
{
	posix_spawn_file_actions_t actions;
	pid_t pid;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 3, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, 3, 4);
	posix_spawn_file_actions_adddup2(&actions, 1, 5);
	posix_spawn_file_actions_addclosefrom_np(&actions, 5);
	int error = posix_spawn(&pid, path, &actions, NULL, argv, said);

	posix_spawn_file_actions_destroy(&actions);
	spawned(pid, error);
}

static void by_shell(const char *path, char *const argv[])
{
	char command[3 * PATH_MAX];

	snprintf(command, sizeof command, "exec 2>&-; cd '%s' && '%s' %s '%s'", dir, path, argv[1], argv[2]);
	exit_like(system(command));
}

static const struct {
	const char *name;
	how *call;
	int shares; /* the call may be made in a child of vfork */
} ways[] = {
	{"execve", by_execve, 1},
	{"execv", by_execv, 1},
	{"execvp", by_execvp, 1},
	{"execvpe", by_execvpe, 1},
	{"execl", by_execl, 1},
	{"execle", by_execle, 1},
	{"execlp", by_execlp, 1},
	{"by number", by_number, 1},
	{"execveat", by_execveat, 1},
	{"not followed", by_execveat_nofollow, 1},
	{"posix_spawn", by_spawn, 0},
	{"posix_spawnp", by_spawnp, 0},
	{"spawn with actions", by_spawn_actions, 0},
	{"system", by_shell, 0},
};

static const char *const files[] = {
	"hi", "a-name-longer-than-what-the-kernel-keeps", "unmarked", "special", "sub", "link", "out", "astray", "loop",
	"to-script", "empty", "text", "truncated", "script", "strict", "nothing", "blank", "missing", "unmarked-script",
	"of-a-directory", "of-unmarked", "of-subdirectory", "of-empty", "1", "2", "3", "4", "5", "6", "7", "self",
	"of-elsewhere", "long-interpreter", "long-argument", "nonexistent", "hi/x", "hi/", "nonexistent/x", "sub/../hi",
	"sub/./", "",
};

static const char *const others[] = {"of-hi", "of-1", "of-script", "of-missing"};

static int shared; /* the children are made by vfork */
static char *first = "one";

/* attempt executes a file in a child, and prints how the child has ended. */
static void attempt(const char *name, how *call, const char *path)
{
	char *argv[] = {"zero", first, "two words", NULL};
	int status;

	printf("%s ", name);
	hide(path);
	printf(": ");
	fflush(stdout);
	pid_t pid = shared ? vfork() : fork();

	if (pid == 0) {
		call(path, argv);
		_exit(errno);
	}
	if (waitpid(pid, &status, 0) != pid)
		printf("lost\n");
	else if (WIFEXITED(status) && WEXITSTATUS(status) < 100)
		printf("%s\n", strerrorname_np(WEXITSTATUS(status)));
	else
		printf("ended with %d %d\n", WEXITSTATUS(status), WTERMSIG(status));
}

/* has reports whether the nth call executes the kth file. The first call executes all files, and the others different parts of
 * them. */
static int has(size_t n, size_t k, size_t part)
{
	const char *which = getenv("EXECUTE");

	return n == 0 || k % part == n % part || (which != NULL && strcmp(which, "all") == 0);
}

static int all(void)
{
	char path[PATH_MAX];
	size_t n = 0; /* index among the calls that a child of this kind can make */

	for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
		if (shared && !ways[w].shares)
			continue;
		if (ways[w].call == by_spawn)
			n = 0; /* posix_spawn: the C library creates the child */
		for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
			snprintf(path, sizeof path, "%s/%s", dir, files[f]);
			if (has(n, f, 5))
				attempt(ways[w].name, ways[w].call, path);
		}
		for (size_t f = 0; f < sizeof others / sizeof *others; f++) {
			snprintf(path, sizeof path, "%s/%s", elsewhere, others[f]);
			if (has(n, f, 2))
				attempt(ways[w].name, ways[w].call, path);
		}
		n++;
	}
	return 0;
}

/* ---- along PATH ---- */

static void set_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void set_path(const char *format, ...)
{
	char path[3 * PATH_MAX];
	va_list ap;

	va_start(ap, format);
	vsnprintf(path, sizeof path, format, ap);
	va_end(ap);
	setenv("PATH", path, 1);
	printf("PATH ");
	hide(path);
	printf("\n");
}

static void look(void)
{
	static const char *const names[] = {"hi", "tool", "both", "unmarked", "text", "script", "1", "echo", "sub", "loop",
					    "nonexistent", "", "bin/tool", "./hi"};
	static const struct {
		const char *name;
		how *call;
	} searches[] = {{"execvp", by_execvp}, {"execvpe", by_execvpe}, {"execlp", by_execlp}, {"posix_spawnp", by_spawnp}};
	char name[NAME_MAX + 2];

	memset(name, 'x', sizeof name);
	name[NAME_MAX + 1] = '\0';
	for (size_t s = 0; s < sizeof searches / sizeof *searches; s++) {
		for (size_t n = 0; n < sizeof names / sizeof *names; n++)
			if (has(s, n, 3))
				attempt(searches[s].name, searches[s].call, names[n]);
		attempt(searches[s].name, searches[s].call, name);
		attempt(searches[s].name, searches[s].call, name + 1);
	}
}

static int search(void)
{
	if (chdir(dir) != 0)
		perror(dir);
	set_path("%s", dir);
	look();
	set_path("/nonexistent:%s/nonexistent:%s/bin:%s:/bin", dir, dir, dir);
	look();
	set_path("%s/hi:%s/hi", dir, dir);
	look();
	set_path("%s/bin::%s/hi", dir, dir);
	look();
	set_path("bin::/bin");
	look();
	set_path("/bin:");
	look();
	set_path("%s", "");
	look();
	unsetenv("PATH");
	look();
	/* The C library skips a directory whose name is too long. */
	if (chdir("sub") != 0)
		perror("sub");
	set_path("%s/%*d:%s", dir, PATH_MAX, 0, dir);
	look();
	return 0;
}

/* ---- cases that only some calls have ---- */

static int opened(const char *name, int flags)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, flags);

	if (fd < 0)
		perror(path);
	return fd;
}

static int number;

static void by_fexecve(const char *path, char *const argv[])
{
	(void)path;
	fexecve(number, argv, said);
}

static void by_execveat_itself(const char *path, char *const argv[])
{
	(void)path;
	execveat(number, "", argv, said, AT_EMPTY_PATH);
}

static void by_execveat_below(const char *path, char *const argv[])
{
	execveat(number, path, argv, said, 0);
}

static void by_execveat_oddly(const char *path, char *const argv[])
{
	execveat(number, path, argv, said, 0x40000000);
}

static void by_bare_execve(const char *path, char *const argv[])
{
	execve(path, argv, (char *[]){NULL});
}

static void without_arguments(const char *path, char *const argv[])
{
	(void)argv;
	execve(path, (char *[]){NULL}, said);
}

static void by_bare_spawn(const char *path, char *const argv[])
{
	pid_t pid;

	spawned(pid, posix_spawn(&pid, path, NULL, NULL, argv, (char *[]){NULL}));
}

static void by_popen(const char *path, char *const argv[])
{
	char line[1000];
	FILE *f = popen(path, "r");

	(void)argv;
	while (f != NULL && fgets(line, sizeof line, f) != NULL)
		printf("read %s", line);
	fflush(stdout);
	exit_like(pclose(f));
}

/* of_descriptor executes an open file. */
static void of_descriptor(const char *name, int flags)
{
	char text[PATH_MAX];

	snprintf(text, sizeof text, "%s %#x", name, flags);
	number = opened(name, flags);
	first = "open";
	attempt("fexecve", by_fexecve, text);
	attempt("execveat itself", by_execveat_itself, text);
	first = "one";
	close(number);
}

/* next_descriptor returns the lowest free descriptor. */
static int next_descriptor(void)
{
	int fd = open("/dev/null", O_RDONLY);

	close(fd);
	return fd;
}

/* failures checks that failing calls leave no descriptor open. */
static void failures(void)
{
	static const char *const names[] = {"empty", "unmarked", "nonexistent", "of-unmarked", "self", "nothing", "sub"};
	char path[PATH_MAX], *argv[] = {"zero", NULL};
	int before = next_descriptor();

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, names[i]);
		errno = 0;
		by_execve(path, argv);
		printf("here %s: %s", names[i], strerrorname_np(errno));
		errno = 0;
		by_spawn(path, argv);
		printf(" %s", strerrorname_np(errno));
		by_spawnp(path, argv);
		printf(" %s, %d descriptors more\n", strerrorname_np(errno), next_descriptor() - before);
	}
}

static int odd(void)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/hi", dir);
	close(open(path, O_RDONLY)); /* the runtime opens its own descriptors now */
	failures();

	snprintf(path, sizeof path, "%s/hi", dir);
	attempt("bare", by_bare_execve, path);
	attempt("bare spawn", by_bare_spawn, path);
	attempt("popen", by_popen, path);
	attempt("without arguments", without_arguments, path);
	snprintf(path, sizeof path, "%s/1", dir);
	attempt("without arguments", without_arguments, path);
	attempt("popen", by_popen, path);
	of_descriptor("hi", O_RDONLY | O_CLOEXEC);
	of_descriptor("hi", O_PATH | O_CLOEXEC);
	of_descriptor("unmarked", O_RDONLY | O_CLOEXEC);
	of_descriptor("sub", O_RDONLY | O_CLOEXEC);
	of_descriptor("empty", O_RDONLY | O_CLOEXEC);
	number = opened("script", O_RDONLY);
	attempt("fexecve", by_fexecve, "script, inherited");
	lseek(number, 3, SEEK_SET);
	attempt("fexecve", by_fexecve, "script, read");
	close(number);
	number = -1;
	attempt("fexecve", by_fexecve, "nothing");
	attempt("execveat below", by_execveat_below, "hi");
	number = opened("sub", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	attempt("execveat below", by_execveat_below, "../hi");
	attempt("execveat below", by_execveat_below, "../link");
	attempt("execveat below", by_execveat_below, "nonexistent");
	attempt("execveat below", by_execveat_below, "");
	attempt("execveat oddly", by_execveat_oddly, "../hi");
	close(number);
	if (chdir(dir) != 0 || chdir("sub") != 0)
		perror(dir);
	attempt("relative", by_execve, "../hi");
	attempt("relative", by_execve, "../script");
	attempt("relative", by_execve, "../2");
	attempt("relative", by_spawn, "../hi");
	attempt("relative", by_spawn, "../script");
	attempt("relative", by_spawn, "hi");
	return 0;
}

int main(int argc, char **argv)
{
	static char now[] = "SAID=so";
	size_t n = 0;

	if (argc != 4 || strcmp(argv[0], "zero") == 0 || argv[1][0] != '/')
		return say(argc, argv);
	dir = argv[1];
	elsewhere = argv[2];
	setenv("DIR", dir, 1);
	setenv("ELSEWHERE", elsewhere, 1);
	while (environ[n] != NULL && n < 900) {
		said[n] = environ[n];
		n++;
	}
	said[n] = now;
	shared = strcmp(argv[3], "vfork") == 0;
	if (strcmp(argv[3], "make") == 0)
		return make();
	if (strcmp(argv[3], "search") == 0)
		return search();
	return strcmp(argv[3], "odd") == 0 ? odd() : all();
}
