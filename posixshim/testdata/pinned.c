/*
 * pinned FILE: binds itself to the first processor that it may use, writes a file, and prints the name and the processors of each
 * thread. Then it does the same in a child.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void threads(const char *who)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;

	while ((entry = readdir(tasks)) != NULL) {
		char path[300], line[256], name[64] = "", cpus[64] = "";
		snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
		FILE *status = entry->d_name[0] == '.' ? NULL : fopen(path, "r");

		if (status == NULL)
			continue;
		while (fgets(line, sizeof line, status)) {
			sscanf(line, "Name: %63s", name);
			sscanf(line, "Cpus_allowed_list: %63s", cpus);
		}
		fclose(status);
		printf("%s %s %s\n", who, name, cpus);
	}
	closedir(tasks);
	fflush(stdout);
}

static void use(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);

	if (fd < 0 || write(fd, "data", 4) != 4 || fsync(fd) != 0 || close(fd) != 0) {
		perror(path);
		exit(1);
	}
}

static void *other(void *path)
{
	use(path);
	return NULL;
}

int main(int argc, char **argv)
{
	cpu_set_t set;
	pthread_t thread;
	int cpu = 0;

	(void)argc;
	/* The child outlives its parent, and still has an ancestor with all processors. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (fork() != 0) {
		while (wait(NULL) > 0)
			;
		return 0;
	}
	sched_getaffinity(0, sizeof set, &set);
	while (!CPU_ISSET(cpu, &set))
		cpu++;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof set, &set);
	printf("pinned to %d\n", cpu);
	use(argv[1]);
	pthread_create(&thread, NULL, other, argv[1]);
	pthread_join(thread, NULL);
	threads("parent");
	pid_t parent = getpid();

	if (fork() == 0) {
		char path[512];

		while (getppid() == parent) /* the parent is the server while it runs */
			usleep(1000);
		snprintf(path, sizeof path, "%s", argv[1]);
		*strrchr(path, '/') = '\0';
		(void)access(path, F_OK);
		threads("child");
		exit(0);
	}
	return 0;
}
