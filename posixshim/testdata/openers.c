/* Uses the mount argv[1] for the first time, which loads the runtime. Meanwhile other threads open and close descriptors of the
 * same kinds as the runtime's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static _Atomic int stop, rounds, failed;

static void *opener(void *unused)
{
	while (!stop) {
		int e = epoll_create1(0), v = eventfd(0, 0), f = open("/dev/zero", O_RDONLY);
		char c = 1;

		failed += e < 0 || v < 0 || read(f, &c, 1) != 1 || c != 0;
		failed += (close(e) != 0) + (close(v) != 0) + (close(f) != 0);
		rounds++;
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t threads[3];
	char path[4096];

	if (argc != 2)
		return 2;
	snprintf(path, sizeof path, "%s/openers", argv[1]);
	for (int i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, opener, NULL);
	while (rounds < 100)
		usleep(100);
	for (int i = 0; i < 20; i++) {
		int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);

		failed += write(fd, "abc", 3) != 3;
		failed += close(fd) != 0;
	}
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	printf("failed: %d\n", failed);
	return 0;
}
