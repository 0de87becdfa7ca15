/* Children share the open files of their parent in the mount argv[1]: offsets, flags, unlinked files. Parent and children see
 * each other's changes. Prints the results, which are the same on every file system. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir;

#define SAY(...) (printf(__VA_ARGS__), fflush(stdout))

static char *in(const char *name)
{
	static char path[8][4096];
	static int next;
	char *p = path[next++ % 8];

	snprintf(p, sizeof path[0], "%s/%s", dir, name);
	return p;
}

static const char *why(long result)
{
	return result < 0 ? strerrorname_np(errno) : "done";
}

static int status_of(pid_t pid)
{
	int status = -1;

	if (waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Opens a file and prints its contents. */
static void show(const char *name)
{
	char text[4096];
	int fd = open(in(name), O_RDONLY);
	ssize_t n = read(fd, text, sizeof text);

	SAY("%s: %.*s\n", name, n < 0 ? 0 : (int)n, text);
	close(fd);
}

static void offsets(void)
{
	int fd = open(in("offsets"), O_RDWR | O_CREAT | O_TRUNC, 0600);

	write(fd, "parent ", 7);
	pid_t pid = fork();

	if (pid == 0) {
		int twice = dup(fd);

		write(fd, "child ", 6);
		write(twice, "twice ", 6);
		SAY("child is at %ld, reads %zd\n", (long)lseek(twice, 0, SEEK_CUR), pread(fd, in("x"), 6, 0));
		close(fd);
		SAY("through the duplicate: %zd\n", write(twice, "still ", 6));
		if (fork() == 0) {
			write(twice, "grandchild ", 11);
			_exit(0);
		}
		wait(NULL);
		_exit(3);
	}
	SAY("exit %d\n", status_of(pid));
	SAY("at %ld\n", (long)lseek(fd, 0, SEEK_CUR));
	write(fd, "parent", 6);
	SAY("close %d\n", close(fd));
	show("offsets");
}

/* The parent closes a file that its child continues to use. */
static void outlived(void)
{
	int ready[2], fd = open(in("outlived"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	char c;

	pipe(ready);
	pid_t pid = fork();

	if (pid == 0) {
		close(ready[1]);
		read(ready[0], &c, 1);
		SAY("child: %s\n", why(write(fd, "closed by the parent", 20)));
		_exit(close(fd));
	}
	close(ready[0]);
	SAY("close %d\n", close(fd));
	close(ready[1]);
	SAY("exit %d\n", status_of(pid));
	show("outlived");
}

/* Parent and child append at the same time. An unlinked file exists until both have closed it. */
static void together(void)
{
	int fd = open(in("together"), O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
	struct stat st;
	pid_t pid = fork();

	for (int i = 0; i < 200; i++)
		write(fd, pid == 0 ? "child....." : "parent....", 10);
	if (pid == 0)
		_exit(0);
	status_of(pid);
	unlink(in("together"));
	pid = fork();
	if (pid == 0)
		_exit(fstat(fd, &st) != 0 || st.st_size != 4000 || st.st_nlink != 0);
	SAY("unlinked: %d\n", status_of(pid));
	SAY("size %ld\n", (long)lseek(fd, 0, SEEK_END));
	close(fd);
}

/* Calls on paths, directories, streams and mappings in a child. */
static void names(void)
{
	int fd = open(in("names"), O_RDWR | O_CREAT | O_TRUNC, 0640);
	FILE *stream = fopen(in("stream"), "w");

	write(fd, "0123456789", 10);
	fprintf(stream, "parent\n");
	fflush(stream);
	pid_t pid = fork();

	if (pid == 0) {
		struct stat st;

		SAY("mkdir: %s\n", why(mkdir(in("made"), 0700)));
		SAY("again: %s\n", why(mkdir(in("made"), 0700)));
		int d = open(in("made"), O_RDONLY | O_DIRECTORY);
		int f = openat(d, "inside", O_CREAT | O_EXCL | O_WRONLY, 0600);

		SAY("openat: %s\n", why(f));
		SAY("write: %zd\n", write(f, "x", 1));
		SAY("close: %d\n", close(f));
		SAY("rename: %s\n", why(renameat(d, "inside", AT_FDCWD, in("moved"))));
		SAY("stat: %s\n", why(stat(in("moved"), &st)));
		SAY("size %ld mode %o\n", (long)st.st_size, st.st_mode);
		SAY("missing: %s\n", why(open(in("missing"), O_RDONLY)));
		SAY("symlink: %s\n", why(symlink("moved", in("link"))));
		SAY("outside: %s\n", why(symlink("/dev/null", in("null"))));
		int null = open(in("null"), O_WRONLY);

		SAY("through it: %zd\n", write(null, "x", 1));
		SAY("ftruncate: %s\n", why(ftruncate(fd, 5)));
		SAY("fchmod: %s\n", why(fchmod(fd, 0600)));
		SAY("fcntl: %d\n", fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
		SAY("append: %s\n", why(fcntl(fd, F_SETFL, O_APPEND)));
		char *m = mmap(NULL, 5, PROT_READ, MAP_PRIVATE, fd, 0);

		SAY("mmap: %.5s\n", m);
		fprintf(stream, "child\n");
		SAY("fclose: %d\n", fclose(stream));
		SAY("chdir: %s\n", why(chdir(in("made"))));
		close(open("relative", O_CREAT | O_WRONLY, 0600));
		SAY("there: %s\n", why(access(in("made/relative"), F_OK)));
		_exit(0);
	}
	SAY("exit %d\n", status_of(pid));
	SAY("append is shared: %d\n", !!(fcntl(fd, F_GETFL) & O_APPEND));
	write(fd, "!", 1);
	close(fd);
	fprintf(stream, "parent again\n");
	fclose(stream);
	show("names");
	show("stream");
	show("moved");
}

static void executed(const char *self)
{
	int fd = open(in("executed"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	int hidden = open(in("executed"), O_RDWR | O_CLOEXEC);
	char a[16], b[16];

	snprintf(a, sizeof a, "%d", fd);
	snprintf(b, sizeof b, "%d", hidden);
	write(fd, "begin ", 6);
	pid_t pid = fork();

	if (pid == 0) {
		execl(self, self, dir, a, b, (char *)NULL);
		_exit(1);
	}
	SAY("exec: %d\n", status_of(pid));
	pid = vfork();
	if (pid == 0) {
		dup2(fd, 1);
		execlp("echo", "echo", "from echo", (char *)NULL);
		_exit(1);
	}
	SAY("vfork: %d\n", status_of(pid));
	posix_spawn_file_actions_t actions;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, 1);
	char *argv[] = {"sh", "-c", "echo spawned; echo twice", NULL};

	SAY("posix_spawn: %d\n", posix_spawnp(&pid, "sh", &actions, NULL, argv, environ));
	SAY("exit %d\n", status_of(pid));
	char command[4200];

	snprintf(command, sizeof command, "echo by system >&%d; cp %s %s", fd, in("names"), in("copied"));
	SAY("system: %d\n", system(command));
	snprintf(command, sizeof command, "cat %s", in("copied"));
	FILE *p = popen(command, "r");

	SAY("popen: %s\n", fgets(command, sizeof command, p));
	SAY("pclose: %d\n", pclose(p));
	SAY("at %ld\n", (long)lseek(fd, 0, SEEK_CUR));
	close(fd);
	close(hidden);
	show("executed");
}

/* The executed program has the inherited descriptor. The one with FD_CLOEXEC is closed. */
static int second(const char *fd, const char *hidden)
{
	char text[16] = "";

	SAY("reads %zd\n", pread(atoi(fd), text, 6, 0));
	SAY("%s\n", text);
	SAY("writes %zd\n", write(atoi(fd), "second ", 7));
	SAY("hidden: %s\n", why(fcntl(atoi(hidden), F_GETFD)));
	return 5;
}

static void *thread(void *name)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);

	for (int i = 0; i < 20; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(write(fd, "child ", 6) != 6);
		if (status_of(pid) != 0 || write(fd, "parent ", 7) != 7)
			return "failed";
	}
	return close(fd) == 0 ? NULL : "close failed";
}

static void threads(void)
{
	pthread_t t[4];
	void *result = NULL;
	char name[4][4096];

	for (int i = 0; i < 4; i++) {
		snprintf(name[i], sizeof name[i], "%s/thread%d", dir, i);
		pthread_create(&t[i], NULL, thread, name[i]);
	}
	for (int i = 0; i < 4; i++) {
		struct stat st;

		pthread_join(t[i], &result);
		stat(name[i], &st);
		SAY("thread %d: %s, %ld bytes\n", i, result == NULL ? "done" : (char *)result, (long)st.st_size);
	}
}

/* Many children and open files must leave no descriptor open. */
static void many(void)
{
	int failed = 0;

	for (int i = 0; i < 300; i++) {
		int fd = open(in("many"), O_RDWR | O_CREAT, 0600);
		pid_t pid = fork();

		if (pid == 0)
			_exit(pwrite(fd, "x", 1, i) != 1);
		failed += status_of(pid) != 0;
		failed += close(fd) != 0;
	}
	SAY("failed: %d\n", failed);
	SAY("the next descriptor is %d\n", dup(0));
}

/* A child gets a descriptor of its working directory from the parent, which is its server. In the grandchild the same number is a
 * connection, which the grandchild must not close. */
static void grandchild(void)
{
	struct stat st;
	int fd = open(in("held"), O_RDWR | O_CREAT, 0600);

	mkdir(in("directory"), 0700);
	pid_t child = fork();

	if (child == 0) {
		SAY("chdir %s\n", why(chdir(in("directory"))));
		SAY("stat %s\n", why(stat(".", &st)));
		pid_t last = fork();

		if (last == 0) {
			SAY("stat %s\n", why(stat(in("held"), &st)));
			SAY("chdir %s\n", why(chdir("/")));
			for (int i = 0; i < 3; i++)
				SAY("stat %s\n", why(stat(in("held"), &st)));
			_exit(3);
		}
		_exit(status_of(last));
	}
	SAY("grandchild ends with %d\n", status_of(child));
	close(fd);
}

/* When a child calls _exit, data in the buffer of stdout is written only by the parent. The parent has not used any file yet. */
static void unflushed(void)
{
	int ready[2];

	pipe(ready);
	printf("once, ");
	pid_t child = fork();

	if (child == 0) {
		int fd = open(in("kept"), O_RDWR | O_CREAT, 0600);

		if (fork() == 0) { /* the child keeps the file open a little longer than the parent */
			close(ready[0]);
			close(1);
			usleep(100000);
			_exit(0);
		}
		close(fd);
		_exit(0);
	}
	status_of(child);
	close(ready[0]);
	close(ready[1]);
	printf("and no more\n");
	fflush(stdout);
}

/* lingering returns a connection whose close takes a second (SO_LINGER), since no process receives the data that was sent. */
static int lingering(int *other)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof name;
	int listening = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
	static char bytes[1 << 16];

	bind(listening, (struct sockaddr *)&name, length);
	listen(listening, 1);
	getsockname(listening, (struct sockaddr *)&name, &length);
	connect(fd, (struct sockaddr *)&name, length);
	*other = accept(listening, NULL, NULL);
	close(listening);
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 1}, sizeof(struct linger));
	while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
		;
	return fd;
}

static void *put_in_place(void *two)
{
	dup2(((int *)two)[0], ((int *)two)[1]);
	return NULL;
}

/* A program is executed while another thread is in dup2 over a descriptor whose close takes long. */
static void slow(void)
{
	int other, fd = open(in("slow"), O_RDWR | O_CREAT | O_TRUNC, 0600), two[] = {fd, lingering(&other)};
	pthread_t thread;
	char command[64];

	pthread_create(&thread, NULL, put_in_place, two);
	usleep(50000);
	snprintf(command, sizeof command, "echo executed >&%d", fd);
	SAY("command: %d\n", system(command));
	pthread_join(thread, NULL);
	close(fd);
	close(two[1]);
	close(other);
	show("slow");
}

int main(int argc, char **argv)
{
	dir = argv[1];
	if (argc == 4)
		return second(argv[2], argv[3]);
	unflushed();
	grandchild();
	offsets();
	outlived();
	together();
	names();
	executed("/proc/self/exe");
	threads();
	many();
	slow();
	return 0;
}
