/* Failures between a process and its server: bad buffers, no free descriptors, transfers larger than a message, a child that no
 * fork handler has seen, the death of either process. The directory is argv[1], the case is argv[2]. Prints the results. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAY(...) (printf(__VA_ARGS__), fflush(stdout))
#define P(expr) print(#expr, (long)(expr))

static volatile bool ending;
static const char *dir;
static char path[4096];

static char *in(const char *name)
{
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static long print(const char *what, long value)
{
	int e = errno;

	SAY("%s = %ld%s%s\n", what, value, value == -1 ? " " : "", value == -1 ? strerrorname_np(e) : "");
	return value;
}

static void ended(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	SAY("exit %d signal %d\n", WEXITSTATUS(status), WTERMSIG(status));
}

static int lock(int fd, int cmd, short type)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET};

	return fcntl(fd, cmd, &l);
}

/* Calls with unreadable or unwritable buffers fail with EFAULT. The next call makes a new connection. */
static void memory(void)
{
	int fd = open(in("memory"), O_RDWR | O_CREAT, 0600);
	size_t size = 3 << 20;
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pid_t pid = fork();

	if (pid != 0) {
		ended(pid);
		P(lseek(fd, 0, SEEK_END));
		return;
	}
	memset(m, 'x', size);
	mprotect(m + (1 << 20), 4096, PROT_NONE);
	struct iovec iov[] = {{m, 10}, {m + (1 << 20), 10}, {m, 10}};

	P(pwrite(fd, m + (1 << 20), 20, 0));
	P(writev(fd, iov, 3));
	P(lseek(fd, 0, SEEK_END));
	P(pwrite(fd, m, 1 << 20, 0));
	P(pread(fd, m + (1 << 20), 20, 0));
	P(preadv(fd, iov, 3, 0));
	P(pread(fd, m, 1 << 20, 0));
	P(readv(fd, NULL, 0));
	P(writev(fd, NULL, 0));
	P(fcntl(fd, F_GETFL) & O_ACCMODE);
	_exit(0);
}

static void use_up(void)
{
	while (open("/dev/null", O_RDONLY) >= 0)
		;
}

/* The child has no free descriptor for its connection, or for a file that it opens. */
static void child_descriptors(void)
{
	int fd = open(in("child"), O_RDWR | O_CREAT, 0600);
	pid_t pid = fork();

	if (pid != 0) {
		ended(pid);
		P(write(fd, "parent", 6));
		return;
	}
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64});
	use_up();
	P(write(fd, "child", 5));
	P(open(in("other"), O_RDWR | O_CREAT, 0600));
	close(10);
	P(write(fd, "child", 5));
	P(open(in("other"), O_RDWR | O_CREAT, 0600));
	close(11);
	P(open(in("other"), O_RDWR | O_CREAT, 0600)); /* a number is free for the placeholder, but none for the received socket */
	close(12);
	P(open(in("other"), O_RDWR | O_CREAT, 0600) >= 0);
	_exit(0);
}

/* refusals makes 50 writes with requests of many pieces. The server refuses the connection while they are sent. refusals returns
 * the number of writes that fail with the errno of the refusal. */
static int refusals(int fd)
{
	struct iovec iov[1024];
	static char piece[2000]; /* so many small pieces that sending blocks */
	int n = 0;

	for (int i = 0; i < 1024; i++)
		iov[i] = (struct iovec){piece, sizeof piece};
	for (int i = 0; i < 50; i++)
		n += writev(fd, iov, 1024) == -1 && errno == EMFILE;
	return n;
}

/* The parent has no free descriptor, and waits for the child. The child must not wait for the parent. */
static void parent_descriptors(void)
{
	int fd = open(in("parent"), O_RDWR | O_CREAT, 0600);
	static char large[4 << 20]; /* larger than the buffer of the socket */
	int go[2];
	char c;

	pipe(go);
	pid_t pid = fork();

	if (pid == 0) {
		read(go[0], &c, 1);
		P(write(fd, "child", 5));
		P(write(fd, large, sizeof large));
		P(refusals(fd));
		P(access(dir, F_OK));
		_exit(0);
	}
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){600, 600});
	use_up();
	write(go[1], "", 1);
	ended(pid);
	closefrom(fd + 1);
	pid = fork();
	if (pid == 0) {
		P(write(fd, "child", 5));
		_exit(0);
	}
	ended(pid);
}

/* Transfers of any size are complete. */
static void large(void)
{
	size_t size = 20 << 20;
	char *m = malloc(size), *back = malloc(size);
	int fd = open(in("large"), O_RDWR | O_CREAT, 0600);

	for (size_t i = 0; i < size; i++)
		m[i] = (char)(i * 2654435761u >> 13);
	pid_t pid = fork();

	if (pid != 0) {
		ended(pid);
		P(lseek(fd, 0, SEEK_CUR));
		P(pread(fd, back, size, 1));
		P(memcmp(m, back, size));
		return;
	}
	struct iovec iov[] = {{back, 5}, {back + 5, (17 << 20) + 1}, {back + (17 << 20) + 6, size - (17 << 20) - 6}};

	P(pwrite(fd, m, size, 1));
	P(pread(fd, back, size, 1));
	P(memcmp(m, back, size));
	memset(back, 0, size);
	P(preadv(fd, iov, 3, 1));
	P(memcmp(m, back, size));
	P(write(fd, "0", 1));
	P(writev(fd, (struct iovec[]){{m, 8 << 20}, {m + (8 << 20), 4 << 20}}, 2));
	P(pread(fd, back, size, 12 << 20)); /* up to the end of the file, which is within the last message */
	P(lseek(fd, 0, SEEK_CUR));
	_exit(0);
}

static char *map(int fd)
{
	return mmap(NULL, 7, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

/* show prints the contents of a file, by read and from a mapping. */
static void show(int fd, const char *mapped)
{
	char text[8] = "";

	pread(fd, text, 7, 0);
	SAY("%s %.7s\n", text, mapped);
}

/* Changes in a mapping of a process with a server are written by msync, by munmap, even after close, and when the process ends in
 * any way. */
static void mapping(void)
{
	int fd = open(in("mapping"), O_RDWR | O_CREAT, 0600), ready[2], status;
	char byte;

	write(fd, "content", 7);
	char *mine = map(fd);

	pipe(ready);
	pid_t pid = fork();

	if (pid == 0) {
		int own = open(in("mapping"), O_RDWR);
		char *first = map(fd), *second = map(own);

		SAY("%.7s %d\n", first, mprotect(second, 7, PROT_READ));
		first[0] = 'C';
		SAY("%.7s\n", second);
		P(msync(first, 7, MS_SYNC));
		show(own, second);
		close(own);
		first[1] = 'O';
		P(munmap(first, 7));
		P(mprotect(second, 7, PROT_READ | PROT_WRITE));
		show(fd, second);
		second[2] = 'N';
		write(ready[1], "1", 1);
		if (fork() == 0) {
			second[3] = 'T'; /* in memory of the parent */
			_exit(0);
		}
		wait(NULL);
		exit(0);
	}
	read(ready[0], &byte, 1);
	ended(pid);
	show(fd, mine);
	munmap(mine, 7);
	pid = fork();
	if (pid == 0) {
		mine = map(fd);
		mine[4] = 'E';
		write(ready[1], "1", 1);
		pause();
	}
	read(ready[0], &byte, 1);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	for (int i = 0; i < 500 && (pread(fd, &byte, 1, 4) != 1 || byte != 'E'); i++)
		usleep(10000); /* the server must notice the end of the connection */
	show(fd, "");
	if ((pid = fork()) == 0) {
		mine = map(fd);
		mine[5] = 'N';
		_exit(0);
	}
	ended(pid);
	show(fd, "");
}

/* A child that no fork handler has seen (_Fork, clone) does not use its parent's runtime. */
static void unseen(void)
{
	int fd = open(in("unseen"), O_RDWR | O_CREAT | O_APPEND, 0600);

	P(write(fd, "parent ", 7));
	pid_t pid = _Fork();

	if (pid == 0) {
		SAY("inherited: %d\n", write(fd, "lost ", 5) < 0 && (errno == EIO || errno == EBADF));
		int own = open(in("unseen"), O_WRONLY | O_APPEND);

		P(write(own, "child ", 6));
		P(close(own));
		_exit(0);
	}
	ended(pid);
	P(write(fd, "parent ", 7));
	char text[64] = "";

	pread(fd, text, sizeof text, 0);
	SAY("%s\n", text);
}

/* A child that is killed while it writes leaves the file, the offset and the locks usable. */
static void killed(void)
{
	int fd = open(in("killed"), O_RDWR | O_CREAT, 0600), failed = 0;
	static char buf[4 << 20];

	for (int i = 0; i < 30; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			flock(open(path, O_RDWR), LOCK_EX);
			lock(fd, F_SETLK, F_WRLCK);
			for (;;) {
				pwrite(fd, buf, sizeof buf, 0);
				pread(fd, buf, sizeof buf, 0);
			}
		}
		usleep(2000 + 2000 * i);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		failed += pwrite(fd, "x", 1, 0) != 1;
	}
	SAY("failed: %d\n", failed);
	P(lock(fd, F_SETLKW, F_WRLCK));
	P(flock(fd, LOCK_EX)); /* all locks of the children have been released */
	P(close(fd));
}

/* A child whose server was killed gets errors for the old files, and opens new files itself. */
static void outlives(void)
{
	int fd = open(in("outlives"), O_RDWR | O_CREAT | O_APPEND, 0600);
	pid_t pid = fork();

	if (pid == 0) {
		pid_t parent = getppid();

		P(write(fd, "child ", 6));
		kill(parent, SIGKILL);
		while (getppid() == parent)
			usleep(1000);
		P(write(fd, "lost", 4));
		P(fsync(fd));
		P(close(fd));
		fd = open(in("outlives"), O_RDWR | O_APPEND);
		P(write(fd, "again", 5));
		char text[64] = "";

		pread(fd, text, sizeof text, 0);
		SAY("%s\n", text);
		_exit(0);
	}
	pause();
}

/* Calls of a child whose parent has ended, or is about to end. */
static void late(int fd, const char *text)
{
	pid_t parent = getppid();
	char buf[64] = "";

	for (int i = 0; getppid() == parent && i < 300; i++)
		usleep(1000);
	if (write(fd, text, strlen(text)) < 0 || pread(fd, buf, sizeof buf, 0) < 0 || close(fd) != 0)
		perror("child");
	SAY("%s\n", buf);
	_exit(0);
}

/* A process that ends must not delay other processes that have its files open, or wait for the end of its output. Data in the
 * buffers of libc must not be lost. */
static void lingers(void)
{
	FILE *older = fopen(getenv("OLDER"), "w");
	int fd = open(in("lingers"), O_RDWR | O_CREAT, 0600);

	if (fork() == 0)
		late(fd, "child, once it has");
	printf("parent ends\n");
	fprintf(older, "x");
	exit(0);
}

/* use opens a file repeatedly, and prints a line if it gets the number of a shared file. */
static void *use(void *lowest)
{
	for (int fd;; close(fd))
		if ((fd = open("/dev/null", O_RDONLY)) < *(int *)lowest)
			return (void *)write(2, "reused\n", 7);
}

/* While a process is ending, files that its threads open do not get the numbers of shared files. */
static void threads(void)
{
	static int lowest;
	pthread_t thread;
	int ends[2], fd = open(in("threads"), O_RDWR | O_CREAT, 0600);
	char c;

	pipe(ends);
	if (fork() == 0) {
		close(ends[1]);
		read(ends[0], &c, 1);
		usleep(50000);
		_exit(write(fd, "child", 5) != 5);
	}
	lowest = open("/dev/null", O_RDONLY);
	close(lowest);
	pthread_create(&thread, NULL, use, &lowest);
	SAY("parent ends\n");
	exit(0);
}

static void quits(void)
{
	int fd = open(in("quits"), O_RDWR | O_CREAT, 0600);

	if (fork() == 0)
		late(fd, "child, once it has");
	SAY("parent ends\n");
	_exit(0);
}

/* When a process executes a program that inherits no file, the calls of its child continue to work. */
static void executes(void)
{
	int fd = open(in("executes"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fork() == 0)
		late(fd, "child, once it has executed");
	execl("/bin/true", "true", (char *)NULL);
}

/* When a process executes a program, and no other process has its shared files open any more, nothing is handed over. */
static void alone(void)
{
	char self[16], *argv[] = {"sh", "-c", "test $$ = $0 && echo the same process", self, NULL};

	open(in("alone"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fork() == 0)
		_exit(0);
	wait(NULL);
	snprintf(self, sizeof self, "%d", getpid());
	execv("/bin/sh", argv);
}

/* An exec fails while another process has the file open. Children that are created later have the file, too, and keep it longer
 * than that process. */
static void refused(void)
{
	int fd = open(in("refused"), O_RDWR | O_CREAT | O_CLOEXEC, 0600), first[2], later[2];
	char *argv[] = {"/", NULL}, c;
	pid_t child;

	pipe2(first, O_CLOEXEC);
	pipe2(later, O_CLOEXEC);
	if ((child = fork()) == 0) {
		close(first[1]);
		read(first[0], &c, 1);
		_exit(write(fd, "first ", 6) != 6);
	}
	for (int i = 0; i < 3; i++)
		P(execv("/", argv));
	if (fork() == 0) {
		dup2(later[0], 8);
		dup2(fd, 9);
		execl("/bin/sh", "sh", "-c", "read x <&8; echo later >&9", (char *)NULL);
	}
	close(fd);
	close(first[1]);
	ended(child);
	close(later[1]);
	wait(NULL);
	char text[64] = "";

	read(open(path, O_RDONLY), text, sizeof text);
	SAY("%s", text);
}

/* copied returns the number of sockets of shared files that no process should have any more. */
static int copied(void)
{
	struct sockaddr_un name;
	int n = 0;

	for (int fd = 3; fd < 1024; fd++) {
		socklen_t length = sizeof name;

		n += getsockname(fd, (struct sockaddr *)&name, &length) == 0 && name.sun_family == AF_UNIX &&
		     strncmp(name.sun_path + 1, "nvmecr:", 7) == 0;
	}
	return n;
}

/* Children that are forked while the parent opens files for another process close their copies of those sockets. The exception is
 * a child that is forked after the parent has created a socket and before the socket is in the parent's map. If children did not
 * close the copies, one child in three would have one. */
static void copies(void)
{
	int with = 0, status;

	close(open(in("copies"), O_RDWR | O_CREAT, 0600));
	pid_t opens = fork();

	while (opens == 0)
		close(open(path, O_RDWR));
	usleep(50000);
	for (int i = 0; i < 300; i++) {
		if (fork() == 0)
			_exit(copied());
		wait(&status);
		with += status != 0;
	}
	kill(opens, SIGKILL);
	SAY("%s\n", with < 45 ? "few" : "many");
}

/* toggle sets and clears FD_CLOEXEC of a descriptor, and counts how often the flag has another value than the one that was set. */
static void *toggle(void *descriptor)
{
	int fd = *(int *)descriptor;
	long lost = 0;

	while (!ending)
		for (int i = 0; i < 1000; i++) {
			fcntl(fd, F_SETFD, i & 1);
			lost += fcntl(fd, F_GETFD) != (i & 1);
		}
	return (void *)lost;
}

/* Descriptors keep their flags when sockets replace their placeholders. */
static void flags(void)
{
	int fd = open(in("flags"), O_RDWR | O_CREAT, 0600);
	char *argv[] = {"/", NULL};
	pthread_t thread;
	void *lost;

	pthread_create(&thread, NULL, toggle, &fd);
	for (int i = 0; i < 500; i++)
		execv("/", argv);
	ending = true;
	pthread_join(thread, &lost);
	P(lost);
}

/* A process whose exec has failed serves its files as before. */
static void fails(void)
{
	char *argv[] = {"missing", NULL};
	int fd = open(in("fails"), O_RDWR | O_CREAT, 0600);

	P(execv("/missing", argv));
	P(write(fd, "parent", 6));
	close(fd);
	execv("/missing", argv);
	fd = open(in("fails"), O_RDWR | O_APPEND);
	pid_t pid = fork();

	if (pid == 0)
		_exit(write(open(path, O_WRONLY | O_APPEND), "child", 5) != 5);
	ended(pid);
	SAY("child: %ld\n", (long)lseek(fd, 0, SEEK_END));
}

/* The fork handler of another library runs before that of the preload library, and makes an interposed call. */
static void call_early(void)
{
	close(-1);
}

static void register_early(void)
{
	pthread_atfork(NULL, NULL, call_early);
}

__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(void) = register_early;

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*f)(void);
	} tests[] = {{"memory", memory}, {"child", child_descriptors}, {"parent", parent_descriptors}, {"large", large},
		     {"mapping", mapping}, {"unseen", unseen}, {"killed", killed}, {"outlives", outlives},
		     {"lingers", lingers}, {"threads", threads}, {"quits", quits}, {"executes", executes}, {"alone", alone}, {"refused", refused},
		     {"flags", flags}, {"copies", copies}, {"fails", fails}};

	if (argc != 3)
		return 2;
	dir = argv[1];
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (strcmp(tests[i].name, argv[2]) == 0)
			return tests[i].f(), 0;
	return 2;
}
