/* Closes or replaces all descriptors after using the mount argv[1]. The descriptors of the runtime must stay open. Prints the
 * results. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MANY 1024

static const char *dir;
static char path[4096], big[4 << 20];

/* use writes a file, reads it back, and returns its descriptor, still open. */
static int use(const char *name)
{
	static char back[sizeof big];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	memset(big, name[0], sizeof big);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	ssize_t w = write(fd, big, sizeof big);
	ssize_t r = pread(fd, back, sizeof back, 0);

	printf("%s: wrote %zd, read %zd, same %d, sync %d\n", name, w, r, memcmp(big, back, sizeof big) == 0, fsync(fd));
	return fd;
}

/* others prints whether another process can write to the mount, and whether this process sees the change at once. It sees the
 * change if it still has the partition and executes the calls of the other process, or if it opens the partition again. */
static void others(const char *when)
{
	char command[5000], name[4200];

	snprintf(name, sizeof name, "%s/others", dir);
	snprintf(command, sizeof command, "touch %s 2>/dev/null", name);
	int status = system(command);

	printf("%s: others %s, seen %d\n", when, status == 0 ? "can write" : "cannot write", unlink(name) == 0);
}

/* left returns the number of open descriptors from first on. */
static int left(int first)
{
	int n = 0;

	for (int fd = first; fd < MANY; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* hidden returns the number of descriptors that are open, but on which calls fail with EBADF: those of the runtime. */
static int hidden(int first, int end)
{
	char name[64], to[64];
	int n = 0;

	for (int fd = first; fd < end; fd++) {
		snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
		n += syscall(SYS_readlinkat, AT_FDCWD, name, to, sizeof to) >= 0 && fcntl(fd, F_GETFD) < 0;
	}
	return n;
}

/* still waits until n descriptors are hidden, that is, until the server has noticed the end of other processes. It returns their
 * number. */
static int still(int n)
{
	for (int tries = 0; tries < 10000 && hidden(3, MANY) != n; tries++)
		usleep(1000);
	return hidden(3, MANY) == n;
}

int main(int argc, char **argv)
{
	int status, refused = 0;

	if (argc != 2)
		return 2;
	dir = argv[1];
	setvbuf(stdout, NULL, _IONBF, 0);

	int fd = use("a");
	int all = hidden(3, MANY);

	printf("lowest: %d, hidden among the low ones: %d, poller, lock, and device: %d\n", fd, hidden(3, 100), all >= 4);
	others("open");
	for (int i = 3; i < MANY; i++)
		if (close(i) < 0 && errno != EBADF)
			perror("close");
	printf("closed: left %d, still hidden %d\n", left(3), still(all));
	others("closed");

	fd = use("b");
	still(all); /* the descriptors for other processes have been closed */
	all = hidden(3, MANY);
	others("open again");
	printf("close_range: %d\n", close_range(3, ~0u, 0));
	printf("closed: left %d, still hidden %d\n", left(3), still(all));

	use("c");
	closefrom(3);
	all = hidden(3, MANY);
	printf("closefrom: left %d, hidden %d\n", left(3), all >= 4);

	fd = use("d");
	all = hidden(3, MANY);
	for (int i = 3; i < MANY; i++)
		if (i != fd && dup2(2, i) < 0)
			refused += errno == EBADF;
	printf("dup2: refused %d\n", refused == all);
	for (int i = 3; i < MANY; i++)
		close(i);

	fd = use("e");
	for (int i = 3; i < MANY; i++) /* the descriptor of the runtime's lock must not be duplicated */
		if (i != fd && (dup(i) >= 0 || fcntl(i, F_DUPFD, 3) >= 0 || fcntl(i, F_DUPFD_CLOEXEC, 3) >= 0))
			printf("duplicated: %d\n", i);
	close(fd);
	fd = use("f");
	others("after dup");

	if (fork() == 0) { /* the child is connected to this process */
		for (int i = 3; i < MANY; i++)
			close(i);
		printf("child: hidden %d, left %d\n", hidden(3, MANY), left(3));
		snprintf(path, sizeof path, "%s/f", dir);
		fd = open(path, O_RDONLY);
		printf("child: read %zd\n", read(fd, big, sizeof big));
		_exit(0);
	}
	wait(&status);
	printf("exit: %d\n", status);
	others("after fork");
	close(use("g"));
	return 0;
}
