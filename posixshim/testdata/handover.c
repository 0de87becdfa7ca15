/* A process ends, or executes a program, while other processes have its files open. The directory is argv[1], the case is
 * argv[2]. Prints the results. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAY(...) (printf(__VA_ARGS__), fflush(stdout))
#define MANY 200
#define TIMES 4000

static const char *dir;
static int report[2]; /* a pipe for the output of processes that outlive the first one */

static const char *in(const char *name)
{
	static char path[4096];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static void tell(const char *what)
{
	dprintf(report[1], "%s%s%s\n", what, errno == 0 ? "" : ": ", errno == 0 ? "" : strerrorname_np(errno));
}

/* orphaned waits until the parent has ended. */
static void orphaned(pid_t parent)
{
	while (getppid() == parent)
		usleep(1000);
	errno = 0;
}

/* A child makes calls continuously while its parent ends. No write is lost or executed twice, and locks persist. */
static void busy(void)
{
	int fd = open(in("busy"), O_RDWR | O_CREAT | O_APPEND, 0600), go[2];
	char c;

	pipe(go);
	if (fork() == 0) {
		struct flock all = {.l_type = F_WRLCK}, was = {.l_type = F_WRLCK};
		struct stat st;
		long failed = fcntl(fd, F_SETLK, &all);

		for (long i = 0; i < TIMES; i++) {
			if (i == TIMES / 4)
				write(go[1], "", 1);
			failed += write(fd, "12345678", 8) != 8;
		}
		fstat(fd, &st);
		errno = 0;
		tell(failed == 0 && st.st_size == 8 * TIMES ? "appended" : "lost or doubled");
		if (fork() == 0) {
			fcntl(fd, F_GETLK, &was);
			errno = 0;
			tell(was.l_type == F_WRLCK && was.l_pid == getppid() ? "locked" : "not locked");
			_exit(0);
		}
		wait(NULL);
		_exit(0);
	}
	read(go[0], &c, 1);
}

/* Many files, each with its own offset. One was unlinked and one renamed. */
static void many(void)
{
	int fds[MANY];
	pid_t self = getpid();
	char name[32];

	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "many%d", i);
		fds[i] = open(in(name), O_RDWR | O_CREAT, 0600);
		dprintf(fds[i], "%d", i);
	}
	if (fork() == 0) {
		int wrong = 0;

		orphaned(self);
		for (int i = 0; i < MANY; i++) {
			char text[32] = "", want[64];

			dprintf(fds[i], "+%d", i);
			pread(fds[i], text, sizeof text - 1, 0);
			snprintf(want, sizeof want, "%d+%d", i, i);
			wrong += strcmp(text, want) != 0 || close(fds[i]) != 0;
		}
		errno = 0;
		tell(wrong == 0 ? "all there" : "wrong");
		_exit(0);
	}
	unlink(in("many0"));
	char from[4096];

	strcpy(from, in("many1"));
	rename(from, in("other"));
}

/* A child's mapping persists, and its changes are written to the file. */
static void mapped(void)
{
	int fd = open(in("mapped"), O_RDWR | O_CREAT, 0600), go[2];
	pid_t self = getpid();
	char c;

	write(fd, "content", 7);
	pipe(go);
	if (fork() == 0) {
		char *m = mmap(NULL, 7, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), text[8] = "";

		m[0] = 'C';
		write(go[1], "", 1);
		orphaned(self);
		m[1] = 'O';
		errno = 0;
		if (msync(m, 7, MS_SYNC) == 0 && pread(fd, text, 7, 0) == 7)
			tell(text);
		m[2] = 'N';
		munmap(m, 7);
		pread(fd, text, 7, 0);
		tell(text);
		_exit(0);
	}
	read(go[0], &c, 1);
}

/* A process tries to execute a program that does not exist. Afterwards it can still use its files, which nvmecr serve has taken
 * over. */
static void fails(void)
{
	int fd = open(in("fails"), O_RDWR | O_CREAT, 0600);
	char *argv[] = {"missing", NULL}, text[32] = "";

	write(fd, "before", 6);
	for (int i = 0; i < 3; i++)
		execv("/", argv);
	SAY("%s\n", strerrorname_np(errno));
	write(fd, " after", 6);
	if (fork() == 0)
		_exit(write(fd, " child", 6) != 6);
	wait(NULL);
	pread(fd, text, sizeof text - 1, 0);
	SAY("%s\n", text);
	SAY("%d\n", open(in("new"), O_RDWR | O_CREAT, 0600) >= 0 && access(in("new"), F_OK) == 0);
}

/* Two processes of the rank end one after another. A third one writes while children of both have files open. */
static void two(void)
{
	for (int i = 0; i < 2; i++) {
		pid_t child = fork();

		if (child == 0) {
			int fd = open(in(i == 0 ? "first" : "second"), O_RDWR | O_CREAT, 0600);

			child = getpid();
			if (fork() == 0) {
				orphaned(child);
				while (access(in("third"), F_OK) != 0)
					usleep(1000);
				errno = 0;
				tell(write(fd, "text", 4) == 4 && close(fd) == 0 ? "written" : "not written");
				_exit(0);
			}
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
	close(open(in("third"), O_RDWR | O_CREAT, 0600));
}

/* A killed process hands no files over. */
static void killed(void)
{
	int fd = open(in("killed"), O_RDWR | O_CREAT, 0600);
	pid_t parent = getpid();

	if (fork() == 0) {
		write(fd, "text", 4);
		kill(parent, SIGKILL);
		orphaned(parent);
		tell(write(fd, "text", 4) == 4 ? "written" : "not written");
		_exit(0);
	}
	pause();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*f)(void);
	} tests[] = {{"busy", busy}, {"many", many}, {"mapped", mapped}, {"fails", fails}, {"two", two}, {"killed", killed}};
	char text[4096];

	if (argc != 3)
		return 2;
	dir = argv[1];
	pipe(report);
	pid_t tries = fork();

	for (size_t i = 0; i < sizeof tests / sizeof *tests && tries == 0; i++)
		if (strcmp(tests[i].name, argv[2]) == 0) {
			close(report[0]);
			tests[i].f();
			exit(0);
		}
	close(report[1]);
	waitpid(tries, NULL, 0);
	SAY("ended\n");
	for (ssize_t n; (n = read(report[0], text, sizeof text)) > 0;)
		SAY("%.*s", (int)n, text);
	return 0;
}
