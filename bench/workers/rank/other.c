/*
 * Work of ranks other than checkpoints: many files, compute phases, and measurements of the
 * rank's own threads and memory.
 */
#include "rank.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool files_create(const char *prefix, long count, struct result *r)
{
	char path[4200];

	for (long i = 0; i < count; i++) {
		snprintf(path, sizeof path, "%s%ld", prefix, i);
		int64_t begin = now();
		int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

		if (fd < 0 || close(fd) != 0)
			return fail(path);
		samples_add(&r->calls, now() - begin);
	}
	return true;
}

bool files_remove(const char *prefix, long count, struct result *r)
{
	char path[4200];

	for (long i = 0; i < count; i++) {
		snprintf(path, sizeof path, "%s%ld", prefix, i);
		int64_t begin = now();

		if (unlink(path) != 0)
			return fail(path);
		samples_add(&r->calls, now() - begin);
	}
	return true;
}

/* number returns the number after name in a file such as /proc/self/status. */
static long number(const char *file, const char *name)
{
	char line[256];
	long found = 0;
	FILE *f = fopen(file, "re");

	if (!f)
		return 0;
	while (fgets(line, sizeof line, f))
		if (strncmp(line, name, strlen(name)) == 0)
			found = strtol(line + strlen(name), NULL, 10);
	fclose(f);
	return found;
}

/* The numbers of sleeps of the threads that nvmecr's library has started. */
struct sleeps {
	int count;
	int thread[256];
	long times[256];
	int64_t when;
};

/* ours reports whether a thread belongs to nvmecr, by the thread's name. */
static bool ours(const char *thread)
{
	char path[300], name[32] = "";
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", thread);
	f = fopen(path, "re");
	if (!f)
		return false;
	bool is = fgets(name, sizeof name, f) && strcmp(name, "nvmecr\n") == 0;

	fclose(f);
	return is;
}

static void look_at_threads(struct sleeps *s)
{
	char path[300];
	DIR *d = opendir("/proc/self/task");

	s->count = 0;
	s->when = now();
	if (!d)
		return;
	for (struct dirent *e; (e = readdir(d)) && s->count < 256;) {
		if (!ours(e->d_name))
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%.20s/status", e->d_name);
		s->thread[s->count] = atoi(e->d_name);
		s->times[s->count++] = number(path, "voluntary_ctxt_switches:");
	}
	closedir(d);
}

/* most_wakes returns the largest number of sleeps of a thread between two observations. */
static long most_wakes(const struct sleeps *before, const struct sleeps *after)
{
	long most = 0;

	for (int i = 0; i < after->count; i++) {
		long n = after->times[i];

		for (int j = 0; j < before->count; j++)
			if (before->thread[j] == after->thread[i])
				n -= before->times[j];
		most = n > most ? n : most;
	}
	return most;
}

bool watch(struct result *r)
{
	static struct sleeps before, after;

	look_at_threads(&after);
	snprintf(r->extra, sizeof r->extra, " threads=%d wakes=%ld watched=%lld", after.count, most_wakes(&before, &after),
		(long long)(after.when - before.when));
	before = after;
	return true;
}

bool compute(int64_t ns, struct result *r)
{
	volatile double x = 1;
	long turns = 0;

	for (int64_t end = r->begin + ns; now() < end; turns++)
		for (int i = 0; i < 1000; i++)
			x = x * 0.999 + 0.001;
	snprintf(r->extra, sizeof r->extra, " turns=%ld", turns);
	return true;
}

bool pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof set, &set) == 0 || fail("sched_setaffinity");
}

static void *sleep_for_good(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

bool sleeping_thread(void)
{
	pthread_t thread;

	errno = pthread_create(&thread, NULL, sleep_for_good, NULL);
	return errno == 0 || fail("pthread_create");
}

bool memory(const char *path, struct result *r)
{
	struct stat st;

	(void)stat(path, &st); /* the path need not exist: the call makes the rank mount */
	snprintf(r->extra, sizeof r->extra, " resident=%ld peak=%ld",
		number("/proc/self/status", "VmRSS:") * 1024, number("/proc/self/status", "VmHWM:") * 1024);
	return true;
}
