/* Processes end by exit and by _exit while their other threads write under argv[1]. No call of these threads may fail. Prints
 * "ok". */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[3][4096];

static void *busy(void *name)
{
	static const char block[4096];

	for (;;) {
		int fd = open(name, O_RDWR | O_CREAT, 0600);

		for (int i = 0; i < 5; i++)
			if (pwrite(fd, block, sizeof block, 0) != sizeof block)
				perror("pwrite");
		close(fd);
	}
	return NULL;
}

static void child(int how)
{
	pthread_t t;

	for (int i = 0; i < 3; i++)
		pthread_create(&t, NULL, busy, path[i]);
	usleep(60 * 1000); /* until the threads write */
	how == 0 ? exit(0) : _exit(0);
}

int main(int argc, char **argv)
{
	int status;

	if (argc != 2)
		return 2;
	for (int i = 0; i < 3; i++)
		snprintf(path[i], sizeof path[i], "%s/%d", argv[1], i);
	for (int i = 0; i < 30; i++) {
		pid_t pid = fork();

		if (pid == 0)
			child(i % 2);
		if (waitpid(pid, &status, 0) != pid || status != 0)
			printf("status %x\n", (unsigned)status);
	}
	puts("ok");
	return 0;
}
