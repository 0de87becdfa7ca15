/* Writes checkpoints below argv[1] in signal handlers, like programs that get a signal when their time limit is near. Prints the
 * results of the calls. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define P(call)                                  \
	do {                                     \
		long result_ = (long)(call);     \
		report(#call, result_, errno);   \
	} while (0)

static char log_of[1 << 16];
static int earlier; /* opened before the signal */
static volatile sig_atomic_t done;

static void report(const char *what, long result, int error)
{
	size_t n = strlen(log_of);

	snprintf(log_of + n, sizeof log_of - n, "%s = %ld%s%s\n", what, result, result < 0 ? " " : "",
		 result < 0 ? strerrorname_np(error) : "");
	errno = 0;
}

static long entries(const char *path)
{
	DIR *d = opendir(path);
	long n = 0;

	while (d != NULL && readdir(d) != NULL)
		n++;
	if (d != NULL)
		closedir(d);
	return n;
}

static void checkpoint(int signum)
{
	struct stat st = {0};
	struct flock lock = {.l_type = F_WRLCK};
	char text[64] = "";
	static char large[3 << 20];

	(void)signum;
	int fd = open("new", O_RDWR | O_CREAT | O_TRUNC, 0640);

	P(fd >= 0);
	P(write(fd, "state", 5));
	P(pwrite(fd, large, sizeof large, 100));
	P(lseek(fd, 1, SEEK_SET));
	P(read(fd, text, 4));
	P(strcmp(text, "tate"));
	P(fcntl(fd, F_SETLK, &lock));
	P(fsync(fd));
	P(fstat(fd, &st));
	P(st.st_size);
	P(close(fd));
	P(rename("new", "checkpoint"));
	P(mkdir("d", 0700));
	P(symlink("checkpoint", "d/link"));
	P(entries("."));
	P(open("nowhere/x", O_RDONLY));
	P(stat("d/link", &st));
	P(unlink("d/link"));
	P(rmdir("d"));
	P(write(earlier, "more", 4));
	P(close(earlier));
	FILE *f = fopen("stream", "w");

	P(f != NULL);
	P(fprintf(f, "%d\n", 42));
	P(fclose(f));
	P(write(-1, "", 1));
	done = 1;
}

/* compute runs, without using files, until the signal has arrived. */
static void compute(void)
{
	for (volatile double x = 1; !done; x *= 1.0000001)
		;
}

static void *send_signal(void *to)
{
	usleep(20000);
	pthread_kill(*(pthread_t *)to, SIGUSR1);
	return NULL;
}

static void once(const char *name)
{
	pthread_t self = pthread_self(), t;

	printf("-- %s\n", name);
	log_of[0] = '\0';
	done = 0;
	earlier = open("earlier", O_RDWR | O_CREAT | O_TRUNC, 0600);
	P(earlier >= 0);
	P(write(earlier, "some", 4));
	pthread_create(&t, NULL, send_signal, &self);
	compute();
	pthread_join(t, NULL);
	char text[16] = "";
	int fd = open("earlier", O_RDONLY);

	P(read(fd, text, sizeof text));
	P(strcmp(text, "somemore"));
	P(close(fd));
	P(unlink("stream"));
	P(unlink("checkpoint"));
	P(unlink("earlier"));
	fputs(log_of, stdout);
	fflush(stdout);
}

/* A thread that uses no file before it gets its signal. */
static void *stranger(void *arg)
{
	(void)arg;
	compute();
	return NULL;
}

int main(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = checkpoint}, none = {.sa_handler = SIG_IGN};
	pthread_t t;

	if (argc != 2)
		return 2;
	if (chdir(argv[1]) != 0)
		return 3;
	sigaction(SIGUSR1, &act, NULL);
	once("handler before the first file");
	sigaction(SIGUSR1, &none, NULL);
	sigaction(SIGUSR1, &act, NULL);
	once("handler after it");
	fflush(stdout);
	pid_t child = fork();

	if (child == 0) {
		once("child");
		_exit(0);
	}
	waitpid(child, NULL, 0);
	printf("-- thread\n");
	log_of[0] = '\0';
	done = 0;
	earlier = open("earlier", O_RDWR | O_CREAT | O_TRUNC, 0600);
	pthread_create(&t, NULL, stranger, NULL);
	usleep(20000);
	pthread_kill(t, SIGUSR1);
	pthread_join(t, NULL);
	fputs(log_of, stdout);
	return 0;
}
