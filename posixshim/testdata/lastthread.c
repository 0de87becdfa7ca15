/* The first thread ends; the last of the others ends the process. Writes under
 * argv[1], before that, after that (argv[2] is "late"), or in a child of a
 * thread ("child"). Prints "ok" from a handler of atexit. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[4096];
static pthread_t first;

static void at_end(void)
{
	char got[8] = "";
	int fd = open(path, O_RDONLY);

	if (fd < 0 || read(fd, got, sizeof got - 1) < 0)
		perror(path);
	puts(strcmp(got, "late") == 0 ? "ok" : got);
}

static void put(const char *what)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd < 0 || write(fd, what, strlen(what)) < 0 || close(fd) != 0)
		perror(path);
}

static void *thread(void *unused)
{
	void *result;

	(void)unused;
	if (pthread_join(first, &result) != 0 || result != path)
		puts("not joined");
	usleep(100 * 1000); /* longer than the others take to end */
	put("late");
	return NULL;
}

static void *idle(void *unused)
{
	usleep(10 * 1000);
	return unused;
}

static void *life(void *early)
{
	pthread_t t;

	first = pthread_self();
	atexit(at_end);
	if (early != NULL)
		put("early");
	for (int i = 0; i < 10; i++)
		pthread_create(&t, NULL, i == 5 ? thread : idle, NULL);
	pthread_exit(path);
}

static void *parent(void *unused)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		life(path);
	if (waitpid(pid, &status, 0) != pid || status != 0)
		puts("the child has failed");
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t t;

	if (argc != 3)
		return 2;
	snprintf(path, sizeof path, "%s/file", argv[1]);
	if (strcmp(argv[2], "child") == 0) {
		put("first");
		pthread_create(&t, NULL, parent, NULL);
		pthread_join(t, NULL);
		return 0;
	}
	life(strcmp(argv[2], "late") == 0 ? NULL : path);
}
