/*
 * The rank program of `nvmecr bench`. It accesses storage as an application does, by plain
 * calls of the C library, and executes commands of one line each. It knows neither nvmecr nor
 * MPI.
 *
 *   nvmecr-bench-rank --coordinator HOST:PORT[,HOST:PORT...]
 *       connects to the first address that answers, and executes its commands.
 *       NVMECR_BENCH_SECRET is the secret by which the rank identifies itself; rank and
 *       size come from the launcher's variables.
 *   nvmecr-bench-rank --serve-sockets BYTES CONNECTIONS
 *       is the other end of the sockets baseline, with BYTES of memory; it prints its
 *       port, and ends with its standard input.
 *
 * The rank's first message: hello SECRET RANK SIZE HOST BOOT PID
 * After a command:          ready    when everything that is not to be timed is prepared
 * Then after "go":          done begin=NS end=NS NAME=NUMBER...
 * Instead of both:          failed TEXT
 *
 *   write SIZE TRANSFER STAMP SYNC PATH   open, write..., fsync if SYNC is 1, close
 *   read SIZE TRANSFER STAMP WHOLE PATH   open, read..., close; compares the data
 *   write-part SIZE TRANSFER STAMP SYNC FIRST STEP PATH, read-part ...
 *                                         the same in a file of several ranks: pieces at FIRST, FIRST+STEP...
 *   create COUNT PREFIX                   creates empty files PREFIX0, PREFIX1...
 *   remove COUNT PREFIX                   removes these files
 *   call NAME COUNT SIZE PATH             makes a call, such as stat, COUNT times (see calls.c)
 *   unlink PATH, mkdir PATH               removes a file or empty directory; creates a directory
 *   compute NS                            computes for NS nanoseconds
 *   watch                                 reports wake-ups of nvmecr's threads since the last watch
 *   pin CPU                               binds this thread, and threads that it starts
 *   thread                                starts another thread, which sleeps
 *   memory PATH                           calls stat for PATH, then reports its own memory
 *   quit
 */
#include "rank.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int rank, size;
char reason[512];

bool fail(const char *what)
{
	snprintf(reason, sizeof reason, "%.400s: %s", what, strerror(errno));
	return false;
}

int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* find_place gets rank and size from the first launcher whose two variables are set. */
static void find_place(void)
{
	static const char *const names[][2] = {
		{ "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
		{ "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE" },
		{ "PMI_RANK", "PMI_SIZE" },
		{ "PMIX_RANK", "SLURM_STEP_NUM_TASKS" },
		{ "SLURM_PROCID", "SLURM_STEP_NUM_TASKS" },
		{ "SLURM_PROCID", "SLURM_NTASKS" },
	};

	size = 1;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *r = getenv(names[i][0]), *s = getenv(names[i][1]);

		if (r && s) {
			rank = atoi(r);
			size = atoi(s);
			return;
		}
	}
}

static int connect_to(char *address)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
	struct timeval limit = { .tv_sec = 5 };
	char *colon = strrchr(address, ':');
	int one = 1, fd = -1;

	if (!colon)
		return -1;
	*colon = 0;
	if (getaddrinfo(address, colon + 1, &hints, &list) != 0)
		return -1;
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
		if (fd < 0)
			continue;
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(list);
	return fd;
}

static int coordinator = -1;

/* next_line returns the next line without its end, or NULL if there is none. */
static char *next_line(void)
{
	static char buffer[8192];
	static size_t have, used;

	memmove(buffer, buffer + used, have - used);
	have -= used;
	for (used = 0;;) {
		char *end = memchr(buffer, '\n', have);

		if (end) {
			*end = 0;
			used = (size_t)(end - buffer) + 1;
			return buffer;
		}
		if (have == sizeof buffer)
			return NULL;
		ssize_t n = read(coordinator, buffer + have, sizeof buffer - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return NULL;
		have += (size_t)n;
	}
}

static bool say(const char *text)
{
	size_t n = strlen(text);

	while (n > 0) {
		ssize_t done = write(coordinator, text, n);

		if (done < 0 && errno != EINTR)
			return false;
		if (done > 0) {
			text += done;
			n -= (size_t)done;
		}
	}
	return true;
}

static bool say_failed(void)
{
	char line[600];

	snprintf(line, sizeof line, "failed %s\n", reason);
	return say(line);
}

static int by_time(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* The processor time of the process, and the number of times that this thread has slept. */
struct used {
	struct rusage process, thread;
};

static void look_at_use(struct used *u)
{
	getrusage(RUSAGE_SELF, &u->process);
	getrusage(RUSAGE_THREAD, &u->thread);
}

static int64_t processor(const struct timeval *t)
{
	return t->tv_sec * INT64_C(1000000000) + t->tv_usec * 1000;
}

static bool say_done(struct result *r, const struct used *before, const struct used *after)
{
	struct samples *s = &r->calls;
	char line[1024];
	int n = snprintf(line, sizeof line, "done begin=%" PRId64 " end=%" PRId64 " user=%" PRId64 " system=%" PRId64,
		r->begin, r->end, processor(&after->process.ru_utime) - processor(&before->process.ru_utime),
		processor(&after->process.ru_stime) - processor(&before->process.ru_stime));

	n += snprintf(line + n, sizeof line - (size_t)n, " open=%" PRId64 " body=%" PRId64 " sync=%" PRId64 " close=%" PRId64 " sleeps=%ld",
		r->open, r->body, r->sync, r->shut, after->thread.ru_nvcsw - before->thread.ru_nvcsw);
	if (s->count > 0) {
		qsort(s->ns, s->count, sizeof *s->ns, by_time);
		n += snprintf(line + n, sizeof line - (size_t)n,
			" calls=%zu p50=%" PRId64 " p99=%" PRId64 " max=%" PRId64, s->count,
			s->ns[s->count / 2], s->ns[s->count - 1 - s->count / 100], s->ns[s->count - 1]);
	}
	snprintf(line + n, sizeof line - (size_t)n, "%s\n", r->extra);
	return say(line);
}

/* A parsed command of the coordinator. */
struct command {
	enum { WRITE, READ, CREATE, REMOVE, CALL, UNLINK, MKDIR, COMPUTE, WATCH, PIN, THREAD, MEMORY } what;
	struct checkpoint data; /* has the path of all commands */
	int64_t number;
	char call[16];
};

/* rest copies the path, which starts at offset and may contain spaces. */
static bool rest(struct command *o, const char *line, int offset)
{
	snprintf(o->data.path, sizeof o->data.path, "%s", line + offset);
	return offset > 0 && o->data.path[0];
}

/* parse_part parses the commands for a part of a file of several ranks. *at is the offset of
 * the path. */
static bool parse_part(const char *line, struct command *o, int *at)
{
	struct checkpoint *c = &o->data;
	char what[8];
	int flag;

	if (sscanf(line, "%7[a-z]-part %" SCNu64 " %" SCNu64 " %" SCNu64 " %d %" SCNu64 " %" SCNu64 " %n", what, &c->size, &c->transfer,
		&c->stamp, &flag, &c->first, &c->step, at) != 7)
		return false;
	o->what = strcmp(what, "read") == 0 ? READ : WRITE;
	c->sync = o->what == WRITE && flag;
	c->whole = o->what == READ && flag;
	return true;
}

static bool parse(const char *line, struct command *o)
{
	struct checkpoint *c = &o->data;
	int flag = 0, at = 0;

	if (sscanf(line, "write %" SCNu64 " %" SCNu64 " %" SCNu64 " %d %n", &c->size, &c->transfer, &c->stamp, &flag, &at) == 4) {
		o->what = WRITE;
		c->sync = flag;
		return rest(o, line, at) && c->transfer > 0;
	}
	if (sscanf(line, "read %" SCNu64 " %" SCNu64 " %" SCNu64 " %d %n", &c->size, &c->transfer, &c->stamp, &flag, &at) == 4) {
		o->what = READ;
		c->whole = flag;
		return rest(o, line, at) && c->transfer > 0;
	}
	if (parse_part(line, o, &at))
		return rest(o, line, at) && c->transfer > 0 && c->step > 0;
	if (sscanf(line, "create %" SCNd64 " %n", &o->number, &at) == 1) {
		o->what = CREATE;
		return rest(o, line, at);
	}
	if (sscanf(line, "remove %" SCNd64 " %n", &o->number, &at) == 1) {
		o->what = REMOVE;
		return rest(o, line, at);
	}
	if (sscanf(line, "call %15s %" SCNd64 " %" SCNu64 " %n", o->call, &o->number, &c->size, &at) == 3) {
		o->what = CALL;
		return rest(o, line, at);
	}
	if (strncmp(line, "unlink ", 7) == 0) {
		o->what = UNLINK;
		return rest(o, line, 7);
	}
	if (strncmp(line, "mkdir ", 6) == 0) {
		o->what = MKDIR;
		return rest(o, line, 6);
	}
	if (strncmp(line, "memory ", 7) == 0) {
		o->what = MEMORY;
		return rest(o, line, 7);
	}
	o->what = WATCH;
	if (strcmp(line, "watch") == 0)
		return true;
	o->what = THREAD;
	if (strcmp(line, "thread") == 0)
		return true;
	o->what = COMPUTE;
	if (sscanf(line, "compute %" SCNd64, &o->number) == 1)
		return true;
	o->what = PIN;
	return sscanf(line, "pin %" SCNd64, &o->number) == 1;
}

static bool prepare(const struct command *o, struct result *r)
{
	r->calls.count = 0;
	switch (o->what) {
	case WRITE:
	case READ:
		return checkpoint_prepare(&o->data, r);
	case CREATE:
	case REMOVE:
		return samples_reserve(&r->calls, (size_t)o->number);
	default:
		return true;
	}
}

static bool execute(const struct command *o, struct result *r)
{
	const char *path = o->data.path;

	switch (o->what) {
	case WRITE:
		return checkpoint_write(&o->data, r);
	case READ:
		return checkpoint_read(&o->data, r);
	case CREATE:
		return files_create(path, o->number, r);
	case REMOVE:
		return files_remove(path, o->number, r);
	case CALL:
		return calls_make(o->call, path, o->number, o->data.size, r);
	case UNLINK:
		return remove(path) == 0 || errno == ENOENT || fail(path);
	case MKDIR:
		return mkdir(path, 0700) == 0 || errno == EEXIST || fail(path);
	case COMPUTE:
		return compute(o->number, r);
	case WATCH:
		return watch(r);
	case PIN:
		return pin((int)o->number);
	case THREAD:
		return sleeping_thread();
	case MEMORY:
		return memory(path, r);
	}
	return false;
}

/* serve executes one command. It returns false when the connection to the coordinator has ended. */
static bool serve(const char *line)
{
	static struct samples kept; /* its memory is reused for all commands */
	static struct command o;
	struct result r = { .calls = kept };
	struct used before, after;

	memset(&o, 0, sizeof o);
	if (!parse(line, &o)) {
		snprintf(reason, sizeof reason, "no such command: %.400s", line);
		return say_failed();
	}
	bool ok = prepare(&o, &r);
	kept = r.calls;
	if (!ok)
		return say_failed();
	if (!say("ready\n"))
		return false;
	line = next_line();
	if (!line || strcmp(line, "go") != 0)
		return line != NULL;
	look_at_use(&before);
	r.begin = now();
	ok = execute(&o, &r);
	r.end = now();
	look_at_use(&after);
	return ok ? say_done(&r, &before, &after) : say_failed();
}

static bool greet(void)
{
	const char *secret = getenv("NVMECR_BENCH_SECRET");
	char host[256] = "?", boot[64] = "?", line[600];
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		ssize_t n = read(fd, boot, sizeof boot - 1);

		boot[n > 0 ? n : 0] = 0;
		boot[strcspn(boot, "\n")] = 0;
		close(fd);
	}
	gethostname(host, sizeof host - 1);
	snprintf(line, sizeof line, "hello %s %d %d %s %s %d\n", secret ? secret : "-", rank, size, host, boot, (int)getpid());
	return say(line);
}

static int serve_coordinator(char *addresses)
{
	for (char *a = strtok(addresses, ","); a && coordinator < 0; a = strtok(NULL, ","))
		coordinator = connect_to(a);
	if (coordinator < 0) {
		fprintf(stderr, "nvmecr-bench-rank: no coordinator of a benchmark answers at the addresses given: %s\n", strerror(errno));
		return 1;
	}
	if (!greet())
		return 1;
	for (char *line; (line = next_line()) && strcmp(line, "quit") != 0;)
		if (!serve(line))
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--coordinator") == 0) {
		find_place();
		return serve_coordinator(argv[2]);
	}
	if (argc == 4 && strcmp(argv[1], "--serve-sockets") == 0)
		return serve_sockets(strtoull(argv[2], NULL, 10), atoi(argv[3]));
	fprintf(stderr, "nvmecr-bench-rank is started by nvmecr bench\n");
	return 2;
}
