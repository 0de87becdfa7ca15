/* Forked children whose parent has ended. orphans DIR HOW: a process uses files of DIR, forks a child, and ends as HOW says. The child
 * then uses files of DIR. Prints what it finds. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAY(...) (printf(__VA_ARGS__), fflush(stdout))

static const char *dir;
static pid_t first; /* the process that ends */

static const char *in(const char *name)
{
	static __thread char path[4096];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static int must(const char *what, int result)
{
	if (result < 0) {
		SAY("%s: %s\n", what, strerrorname_np(errno));
		exit(1);
	}
	return result;
}
#define MUST(expr) must(#expr, (int)(expr))

static void show(const char *name)
{
	char text[256] = "";
	int fd = MUST(open(in(name), O_RDONLY));

	MUST(read(fd, text, sizeof text - 1));
	MUST(close(fd));
	SAY("%s: %s\n", name, text);
}

static void end_as(const char *how)
{
	if (strcmp(how, "exit") == 0)
		exit(0);
	if (strcmp(how, "_exit") == 0)
		_exit(0);
	if (strcmp(how, "exec") == 0)
		execl("/bin/true", "true", NULL);
	kill(getpid(), SIGKILL);
}

static void wait_for(pid_t parent)
{
	while (getppid() == parent)
		usleep(1000);
}

static int status_of(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Files and directories. The working directory is one that the parent has entered. */
static void names(void)
{
	struct stat st;
	int fd = MUST(open("relative", O_WRONLY | O_CREAT | O_EXCL, 0640));

	MUST(write(fd, "child", 5));
	MUST(close(fd));
	MUST(rename("relative", "renamed"));
	MUST(stat(in("working/renamed"), &st));
	SAY("size %ld mode %o\n", (long)st.st_size, st.st_mode & 0777);
	MUST(mkdir(in("made"), 0700));
	MUST(chdir(in("made")));
	MUST(symlink("../parent", "link"));
	fd = MUST(open("link", O_WRONLY | O_APPEND));
	MUST(write(fd, " child", 6));
	MUST(close(fd));
	show("parent");
	char where[4096];

	SAY("in %s\n", getcwd(where, sizeof where) == NULL ? "nothing" : where + strlen(dir));
	MUST(unlink("link"));
	int count = 0;
	DIR *d = opendir(dir);

	while (d != NULL && readdir(d) != NULL)
		count++;
	SAY("%d entries\n", count);
	MUST(closedir(d));
	FILE *stream = fopen(in("stream"), "w+");

	fprintf(stream, "%d lines", 1);
	SAY("fclose %d\n", fclose(stream));
	show("stream");
}

/* Children of the child: they share the offset, and conflict in locks. One executes a program. */
static void children(void)
{
	int fd = MUST(open(in("shared"), O_RDWR | O_CREAT | O_TRUNC, 0600));
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	MUST(write(fd, "child", 5));
	MUST(fcntl(fd, F_SETLK, &whole));
	pid_t pid = fork();

	if (pid == 0) {
		int locked = fcntl(fd, F_SETLK, &whole) < 0 ? errno : 0;

		MUST(write(fd, " grandchild", 11));
		_exit(locked == EAGAIN || locked == EACCES);
	}
	SAY("conflict %d\n", status_of(pid));
	pid = fork();
	if (pid == 0) {
		MUST(dup2(fd, STDOUT_FILENO));
		execl("/bin/sh", "sh", "-c", "echo -n ' program'; echo -n other > $0/other; cat $0/other", dir, NULL);
		_exit(127);
	}
	SAY("program %d\n", status_of(pid));
	MUST(write(fd, ".", 1));
	MUST(close(fd));
	show("shared");
}

static void mapping(void)
{
	int fd = MUST(open(in("mapped"), O_RDWR | O_CREAT | O_TRUNC, 0600));

	MUST(ftruncate(fd, 8192));
	char *m = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (m == MAP_FAILED)
		MUST(-1);
	strcpy(m, "mapped");
	MUST(msync(m, 8192, MS_SYNC));
	MUST(munmap(m, 8192));
	MUST(close(fd));
	show("mapped");
}

static void *append(void *number)
{
	char name[32], line[9];
	int both = MUST(open(in("both"), O_WRONLY | O_CREAT | O_APPEND, 0600));

	snprintf(name, sizeof name, "own%ld", (long)number);
	snprintf(line, sizeof line, "thread %ld", (long)number);
	int own = MUST(open(in(name), O_WRONLY | O_CREAT | O_TRUNC, 0600));

	for (int i = 0; i < 100; i++) {
		MUST(write(both, line, 8));
		MUST(write(own, line, 8));
	}
	MUST(close(both));
	MUST(close(own));
	return NULL;
}

static void threads(void)
{
	pthread_t thread[4];
	struct stat st;

	for (long i = 0; i < 4; i++)
		pthread_create(&thread[i], NULL, append, (void *)i);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	MUST(stat(in("both"), &st));
	SAY("both %ld\n", (long)st.st_size);
	MUST(stat(in("own3"), &st));
	SAY("own %ld\n", (long)st.st_size);
}

/* A child of the child, whose parent ends too. */
static void second(void)
{
	int ended[2];
	char c;

	pipe(ended);
	pid_t pid = fork();

	if (pid == 0) {
		pid_t parent = getpid();

		if (fork() != 0)
			_exit(0);
		wait_for(parent);
		int fd = MUST(open(in("second"), O_WRONLY | O_CREAT, 0600));

		MUST(write(fd, "second", 6));
		MUST(close(fd));
		show("second");
		_exit(0);
	}
	status_of(pid);
	close(ended[1]);
	read(ended[0], &c, 1); /* returns when its child has ended, too */
}

/* Another process has the partition, and ends while the child has a file open. */
static void other_process(void)
{
	int go[2], ready[2];
	char c;

	pipe(go);
	pipe(ready);
	pid_t pid = fork();

	if (pid == 0) {
		dup2(go[0], STDIN_FILENO);
		dup2(ready[1], STDOUT_FILENO);
		close(go[1]);
		execl("/bin/sh", "sh", "-c", "exec 3> $0/held; echo ready; read line; echo -n held >&3", dir, NULL);
		_exit(127);
	}
	read(ready[0], &c, 1);
	int fd = MUST(open(in("beside"), O_RDWR | O_CREAT | O_TRUNC, 0600));

	MUST(write(fd, "before", 6));
	write(go[1], "\n", 1);
	SAY("other %d\n", status_of(pid));
	MUST(write(fd, " after", 6));
	MUST(close(fd));
	show("beside");
	show("held");
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	dir = argv[1];
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	first = fork();
	if (first != 0) {
		int status, failed = 0;

		while (wait(&status) > 0)
			failed += WIFEXITED(status) && WEXITSTATUS(status) != 0;
		return failed;
	}
	first = getpid();
	int fd = MUST(open(in("parent"), O_WRONLY | O_CREAT, 0600));

	MUST(write(fd, "parent", 6));
	MUST(close(fd));
	MUST(mkdir(in("working"), 0700));
	MUST(chdir(in("working")));
	if (fork() != 0)
		end_as(argv[2]);
	wait_for(first);
	names();
	children();
	mapping();
	threads();
	second();
	other_process();
	return 0;
}
