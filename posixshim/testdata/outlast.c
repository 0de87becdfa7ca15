/* The first thread ends after it has written argv[1]; another one goes on, with
 * no descriptor left but one ("fd"), or in one successor after the other ("chain").
 * Prints "ok" when that is done. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int left = 20000;

static void *few(void *unused)
{
	struct rlimit limit = {600, 600};
	int fd, last = -1;

	setrlimit(RLIMIT_NOFILE, &limit);
	while ((fd = open("/dev/null", O_RDONLY)) >= 0)
		last = fd;
	close(last);
	usleep(500 * 1000);
	puts("ok");
	return unused;
}

static void *chain(void *unused)
{
	pthread_t t;

	pthread_detach(pthread_self());
	if (left-- == 0) {
		puts("ok");
		return unused;
	}
	while (pthread_create(&t, NULL, chain, NULL) != 0)
		usleep(100);
	return unused;
}

int main(int argc, char **argv)
{
	int fd = argc == 3 ? open(argv[1], O_WRONLY | O_CREAT, 0600) : -1;
	pthread_t t;

	if (write(fd, "x", 1) != 1)
		return 1;
	close(fd);
	pthread_create(&t, NULL, strcmp(argv[2], "fd") == 0 ? few : chain, NULL);
	pthread_exit(NULL);
}
