/* Uses file actions of posix_spawn that open files of the directory argv[1], or change to its directories. Prints the results,
 * which the test compares with a run in a local directory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char *dir;
static char path[8][4096];

static const char *in(const char *name)
{
	static int next;
	char *p = path[next++ % 8];

	snprintf(p, sizeof *path, "%s/%s", dir, name);
	return p;
}

static void say(const char *name)
{
	char text[200];
	int fd = open(in(name), O_RDONLY);
	struct stat st;

	if (fd < 0) {
		printf("%s: %s\n", name, strerrorname_np(errno));
		return;
	}
	fstat(fd, &st);
	ssize_t n = read(fd, text, sizeof text);

	printf("%s: %03o %.*s|\n", name, st.st_mode & 0777, (int)n, text);
	close(fd);
}

/* run_program runs a program, such as a shell. */
static void run_program(const char *program, const char *what, posix_spawn_file_actions_t *a, const char *command)
{
	char *argv[] = {"sh", "-c", (char *)command, NULL};
	int status = -1;
	pid_t pid;

	fflush(stdout);
	int error = posix_spawn(&pid, program, a, NULL, argv, environ);

	if (error == 0)
		waitpid(pid, &status, 0);
	printf("%s: %s, status %d\n", what, error == 0 ? "spawned" : strerrorname_np(error), status);
	posix_spawn_file_actions_destroy(a);
	posix_spawn_file_actions_init(a);
}

static void run(const char *what, posix_spawn_file_actions_t *a, const char *command)
{
	run_program("/bin/sh", what, a, command);
}

static int descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 400; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

#define OPEN(fd, name, flags) posix_spawn_file_actions_addopen(&a, fd, in(name), flags, 0666)
#define DUP(fd, to) posix_spawn_file_actions_adddup2(&a, fd, to)
#define CLOSE(fd) posix_spawn_file_actions_addclose(&a, fd)
#define CHDIR(path) posix_spawn_file_actions_addchdir_np(&a, path)
#define BELOW "pwd | grep -o '/d.*'; ls; cat here 2>/dev/null"

static void redirects(void)
{
	posix_spawn_file_actions_t a;

	posix_spawn_file_actions_init(&a);
	umask(026);
	OPEN(1, "out", O_WRONLY | O_CREAT | O_TRUNC);
	run("output", &a, "echo written");
	say("out");
	OPEN(1, "out", O_WRONLY | O_APPEND);
	DUP(1, 2);
	run("both", &a, "echo more; echo even more >&2");
	say("out");
	OPEN(0, "out", O_RDONLY);
	OPEN(1, "copy", O_RDWR | O_CREAT | O_EXCL);
	run("input", &a, "cat; echo end");
	say("copy");
	OPEN(0, "out", O_RDONLY);
	OPEN(1, "copy", O_RDWR | O_CREAT | O_EXCL);
	run("exists", &a, "cat");
	OPEN(0, "nowhere", O_RDONLY);
	run("does not exist", &a, "cat");
	OPEN(0, "", O_WRONLY);
	run("directory", &a, "cat");
	OPEN(0, "out/x", O_RDONLY);
	run("no directory", &a, "cat");
	run("none", &a, "exit 3");
}

static void orders(void)
{
	posix_spawn_file_actions_t a;
	int other = open("/dev/null", O_RDWR);

	posix_spawn_file_actions_init(&a);
	OPEN(5, "five", O_WRONLY | O_CREAT);
	DUP(1, 6);
	DUP(5, 1);
	CLOSE(5);
	run("moved", &a, "echo to five; { echo >&5; } 2>/dev/null || echo closed; echo out >&6");
	say("five");
	OPEN(7, "seven", O_WRONLY | O_CREAT);
	CLOSE(7);
	run("closed", &a, "{ echo >&7; } 2>/dev/null || exit 7");
	say("seven");
	OPEN(7, "seven", O_WRONLY | O_CREAT);
	OPEN(7, "eight", O_WRONLY | O_CREAT);
	run("replaced", &a, "echo where >&7");
	say("seven");
	say("eight");
	OPEN(1, "cloexec", O_WRONLY | O_CREAT | O_CLOEXEC);
	run("cloexec", &a, "{ echo >&1; } 2>/dev/null || exit 9");
	say("cloexec");
	OPEN(1, "cloexec", O_WRONLY | O_CREAT | O_CLOEXEC);
	DUP(1, 4);
	run("cloexec, duplicated", &a, "echo still >&4; { echo >&1; } 2>/dev/null || exit 9");
	say("cloexec");
	OPEN(other, "nine", O_WRONLY | O_CREAT);
	DUP(other, 9);
	run("over one that is open", &a, "echo nine >&9");
	say("nine");
	close(other);
	posix_spawn_file_actions_addopen(&a, 0, "/dev/null", O_RDONLY, 0);
	OPEN(1, "null", O_WRONLY | O_CREAT);
	posix_spawn_file_actions_addopen(&a, 2, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_addclosefrom_np(&a, 3);
	run("others", &a, "cat; echo end; nonsense; { echo >&3; } 2>/dev/null || exit 4");
	say("null");
	posix_spawn_file_actions_addclosefrom_np(&a, 3);
	OPEN(1, "last", O_WRONLY | O_CREAT);
	DUP(1, 2);
	run("others first", &a, "echo last; { echo >&3; } 2>/dev/null || exit 4");
	say("last");
	posix_spawn_file_actions_addclosefrom_np(&a, -1);
	DUP(-1, 2);
	CLOSE(-1);
	OPEN(-1, "never", O_WRONLY | O_CREAT);
	printf("%s\n", strerrorname_np(OPEN(-1, "never", O_WRONLY | O_CREAT)));
	run("what is refused is left out", &a, "exit 2");
	say("never");
}

static void places(void)
{
	posix_spawn_file_actions_t a;

	posix_spawn_file_actions_init(&a);
	mkdir(in("d"), 0777);
	symlink("d/target", in("link"));
	symlink("/dev/null", in("out-of-it"));
	OPEN(1, "link", O_WRONLY | O_CREAT);
	run("by a link", &a, "echo linked");
	say("d/target");
	OPEN(1, "out-of-it", O_WRONLY);
	run("out of it", &a, "echo lost");
	if (chdir(in("d")) != 0)
		printf("chdir: %s\n", strerrorname_np(errno));
	posix_spawn_file_actions_addopen(&a, 1, "relative", O_WRONLY | O_CREAT, 0600);
	run("relative", &a, "echo relative");
	say("d/relative");
	posix_spawn_file_actions_addchdir_np(&a, "/dev");
	posix_spawn_file_actions_addopen(&a, 1, "null", O_WRONLY, 0600);
	posix_spawn_file_actions_addopen(&a, 2, in("d/absolute"), O_WRONLY | O_CREAT, 0600);
	run("elsewhere", &a, "echo lost; pwd >&2");
	say("d/absolute");
	if (chdir("/") != 0)
		printf("chdir: %s\n", strerrorname_np(errno));
}

/* The child's working directory. */
static void directories(void)
{
	posix_spawn_file_actions_t a;

	posix_spawn_file_actions_init(&a);
	mkdir(in("d/sub"), 0777);
	symlink("d", in("to-d"));
	symlink("/", in("to-root"));
	CHDIR(in("d/sub"));
	run("into it", &a, "echo here > here");
	say("d/sub/here");
	CHDIR(in("to-d"));
	CHDIR("sub");
	run("step by step", &a, BELOW);
	CHDIR(in("d"));
	posix_spawn_file_actions_addopen(&a, 1, "sub/relative", O_WRONLY | O_CREAT, 0600);
	CHDIR("./sub/../sub");
	posix_spawn_file_actions_addopen(&a, 0, "here", O_RDONLY, 0600);
	run("opening on the way", &a, "cat");
	say("d/sub/relative");
	posix_spawn_file_actions_addopen(&a, 0, "", O_RDONLY, 0600);
	run("no name", &a, "cat");
	CHDIR(in("d"));
	posix_spawn_file_actions_addopen(&a, 0, "", O_RDONLY, 0600);
	run("no name there", &a, "cat");
	CHDIR(in("d/sub"));
	CHDIR("/");
	run("and out", &a, "pwd");
	CHDIR(in("to-root"));
	run("out by a link", &a, "pwd");
	CHDIR(in("d/none"));
	run("that is not there", &a, "pwd");
	CHDIR(in("d/target"));
	run("that is none", &a, "pwd");
	CHDIR(in("d/sub"));
	posix_spawn_file_actions_addclosefrom_np(&a, 3);
	run("others", &a, BELOW "; { echo >&3; } 2>/dev/null || exit 4");
	CHDIR(in("d/sub"));
	run("a copy", &a, "cp /bin/sh shell");
	CHDIR(in("d"));
	run_program("sub/shell", "a program there", &a, BELOW);
	CHDIR("/bin");
	run_program("./sh", "a program elsewhere", &a, "pwd | grep -o bin");
	CHDIR(in("d"));
	run_program("sub/none", "a program that is not there", &a, BELOW);
	if (chdir(in("d")) != 0)
		printf("chdir: %s\n", strerrorname_np(errno));
	CHDIR("sub");
	run("from within", &a, BELOW);
	CHDIR("/bin");
	run_program("./sh", "from within out", &a, "pwd | grep -o bin");
	if (chdir("/") != 0)
		printf("chdir: %s\n", strerrorname_np(errno));
}

/* A child spawns a program with a file that its server opens. */
static void in_child(void)
{
	posix_spawn_file_actions_t a;

	fflush(stdout);
	if (fork() == 0) {
		posix_spawn_file_actions_init(&a);
		OPEN(0, "out", O_RDONLY);
		OPEN(1, "child", O_WRONLY | O_CREAT);
		run("in a child", &a, "cat; echo child");
		OPEN(1, "nowhere/child", O_WRONLY | O_CREAT);
		run("in a child", &a, "echo child");
		CHDIR(in("d/sub"));
		run("into it in a child", &a, BELOW);
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
	say("child");
}

/* Several threads use one object many times. */
static void *again(void *actions)
{
	char *argv[] = {"sh", "-c", "echo line", NULL};

	for (int i = 0; i < 5; i++) {
		pid_t pid;
		int status;

		int error = posix_spawnp(&pid, "sh", actions, NULL, argv, environ);

		if (error == 0)
			waitpid(pid, &status, 0);
		else
			printf("posix_spawnp: %s\n", strerrorname_np(error));
	}
	return NULL;
}

static void many(void)
{
	posix_spawn_file_actions_t a;
	pthread_t threads[4];

	posix_spawn_file_actions_init(&a);
	OPEN(1, "lines", O_WRONLY | O_CREAT | O_APPEND);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, again, &a);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	posix_spawn_file_actions_destroy(&a);
	say("lines");
}

int main(int argc, char **argv)
{
	dir = argv[argc - 1];
	redirects();
	int before = descriptors();

	orders();
	places();
	directories();
	many();
	in_child();
	printf("%d descriptors more\n", descriptors() - before);
	return 0;
}
