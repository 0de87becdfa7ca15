/*
 * One rank of the soak: rank MOUNT OUT SEED ROUND. It first reads back all it
 * finds in the mount, into OUT/readback, for others to judge. Then its actors,
 * a thread each with a directory of its own in the mount, write checkpoints
 * and change files at random, until the file OUT/stop exists. In one tree
 * (SOAK_TREE) the actors of all ranks are played in turns, and read back by the
 * next rank where one was killed.
 *
 * Each operation is noted in the actor's journal, outside the mount, with one
 * write before it begins (what it is going to do) and one when it has returned
 * (what came of it): whenever the rank is killed, the journal tells what was
 * acknowledged and what was under way.
 *
 *	VERSION > OPERATION ARGUMENTS .
 *	VERSION < RESULT ERRNO [WHAT WAS FOUND] .
 *	= WHAT HAPPENED TO THE RANK .
 *
 * Versions grow, and no two operations of an actor have the same. The data
 * that one writes is a function of actor, version and offset in the file.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef SOAK_MPI
#include <mpi.h>
#endif

enum {
	ACTORS = 2,
	SLOTS = 3,
	LARGEST = 10 << 20, /* of a write */
	READ = 128 << 10,   /* largest read that is summed */
	SUMMED = 1024,      /* bytes under one sum of it */
	PAUSE = 1000000000, /* ns an operation may take before it is worth a line */
};

/* Exit statuses. */
enum { FAILED = 1, CALL_FAILED = 5, NOT_REACHED = 75 };

/* A file that is open. A stream has a descriptor too, to look at what is there. */
struct slot {
	int fd;
	FILE *stream;
	int append;
	off_t at; /* of the stream */
};

struct actor {
	int owner, number, journal; /* the owner is a rank */
	uint32_t version;
	uint64_t seed, random;
	long long begun; /* when the operation in progress began */
	struct slot slots[SLOTS];
	unsigned char *data;
};

static const char *mount, *out;
static int rank, size;
static uint32_t round_number;
static int tree; /* how many ranks' actors all ranks play in turns, in one tree: what is promised is what was synced. 0: each has files of its own */
static struct actor actors[ACTORS];
static _Atomic int works; /* an operation has returned what it may return */

__attribute__((format(printf, 1, 2))) static void all(const char *format, ...);

static void die(const char *what)
{
	int error = errno;

	all("died %s: %s", what, strerror(error));
	errno = error;
	fprintf(stderr, "soak: rank %d: %s: %s\n", rank, what, strerror(errno));
	_exit(FAILED);
}

/* Nanoseconds since 1970. */
static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The journal. */

static void put(struct actor *a, const char *line, size_t n)
{
	if (write(a->journal, line, n) != (ssize_t)n) {
		perror("soak: journal");
		_exit(FAILED);
	}
}

__attribute__((format(printf, 2, 3))) static void begin(struct actor *a, const char *format, ...)
{
	char line[256];
	int n = snprintf(line, sizeof line, "%u > ", ++a->version);
	va_list args;

	va_start(args, format);
	n += vsnprintf(line + n, sizeof line - n, format, args);
	va_end(args);
	n += snprintf(line + n, sizeof line - n, " .\n");
	put(a, line, n);
	a->begun = now();
}

static const char *sums(const unsigned char *data, long n)
{
	static _Thread_local char text[READ / SUMMED * 9 + 1];
	char *t = text;

	*t = 0;
	for (long i = 0; i < n; i += SUMMED) {
		uint32_t sum = 2166136261u;
		for (long j = i; j < n && j < i + SUMMED; j++)
			sum = (sum ^ data[j]) * 16777619u;
		t += sprintf(t, " %08x", sum);
	}
	return text;
}

static int expected(int error)
{
	return error == 0 || error == ENOENT || error == EEXIST || error == ENOTEMPTY || error == ENOSPC;
}

__attribute__((noreturn)) static void give_up(void)
{
	if (works && tree) /* an exit would close its files, which can be done */
		kill(getpid(), SIGKILL);
	_exit(works ? CALL_FAILED : NOT_REACHED);
}

/* end notes what came of the operation. An errno that no operation here can
 * bring about by itself is noted with the time, and is the rank's end. */
static long end(struct actor *a, long result, const char *more)
{
	char line[READ / SUMMED * 9 + 64], when[32];
	int error = result < 0 ? errno : 0;

	if (!expected(error)) {
		snprintf(when, sizeof when, " %lld", now());
		more = when;
	}
	int n = snprintf(line, sizeof line, "%u < %ld %d%s .\n", a->version, result, error, more);
	put(a, line, n);
	if (now() - a->begun > PAUSE) {
		n = snprintf(line, sizeof line, "= paused %lld %u .\n", (now() - a->begun) / 1000000, a->version);
		put(a, line, n);
	}
	if (expected(error)) {
		works = 1;
		return result;
	}
	fprintf(stderr, "soak: rank %d, actor %d: operation %u: %s\n", rank, a->number, a->version, strerror(error));
	give_up();
}

static void all(const char *format, ...)
{
	char line[5000];
	va_list args;

	/* The line before may have been cut short. */
	int n = snprintf(line, sizeof line, "\n= ");
	va_start(args, format);
	n += vsnprintf(line + n, sizeof line - n - 8, format, args);
	va_end(args);
	n += snprintf(line + n, sizeof line - n, " .\n");
	for (int i = 0; i < ACTORS; i++)
		if (actors[i].journal >= 0)
			put(&actors[i], line, n);
}

/* The data. A word of it tells whose it is: see pattern.go. */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static void fill(struct actor *a, unsigned char *data, off_t off, size_t n)
{
	uint64_t who = (uint64_t)(a->owner * ACTORS + a->number + 1) << 56 | (uint64_t)a->version << 24;

	for (size_t i = 0; i < n;) {
		uint64_t word = mix(who | (uint64_t)(off + i) / 8);
		size_t skip = (off + i) % 8, k = 8 - skip < n - i ? 8 - skip : n - i;
		memcpy(data + i, (unsigned char *)&word + skip, k);
		i += k;
	}
}

/* Chance. */

static uint64_t chance(struct actor *a, uint64_t n)
{
	a->random += 0x9e3779b97f4a7c15u;
	return mix(a->random) % n;
}

static size_t some_size(struct actor *a)
{
	uint64_t c = chance(a, 1000);

	if (c < 350)
		return 1 + chance(a, 512);
	if (c < 450)
		return 4096 * (1 + chance(a, 16));
	if (c < 700)
		return 1 + chance(a, 32 << 10);
	if (c < 940)
		return 1 + chance(a, 256 << 10);
	if (c < 997)
		return 1 + chance(a, 2 << 20);
	return (8 << 20) + chance(a, 2 << 20);
}

static const char *some_file(struct actor *a, char *name)
{
	uint64_t c = chance(a, 18);

	if (c < 6)
		sprintf(name, "f%d", (int)c);
	else if (c < 12)
		sprintf(name, "ck%d", (int)chance(a, 4));
	else
		sprintf(name, "d%d/f%d", (int)(c - 12) / 3, (int)(c - 12) % 3);
	return name;
}

/* The path of a name of the actor's. */
static const char *path(struct actor *a, const char *name)
{
	static _Thread_local char paths[2][4096];
	static _Thread_local int turn;

	turn = !turn;
	int n = snprintf(paths[turn], sizeof paths[turn], tree ? "%s/r%d" : "%s", mount, a->owner);
	snprintf(paths[turn] + n, sizeof paths[turn] - n, "/a%d%s%s", a->number, *name ? "/" : "", name);
	return paths[turn];
}

static void unreadable(const char *p)
{
	int error = errno;

	all("unreadable %lld %d %s", now(), error, p);
	fprintf(stderr, "soak: rank %d: %s: %s\n", rank, p, strerror(error));
	give_up();
}

#include "operations.h"

/* A checkpoint, as applications write it. */
static void checkpoint(struct actor *a)
{
	char name[32];
	int h = chance(a, SLOTS);
	size_t piece = 1 + chance(a, 200 << 10);

	if (!op_open(a, h, "tmp", chance(a, 3) ? "ct" : "cts"))
		return;
	for (int left = 1 + chance(a, 8); left > 0; left--) {
		struct slot *s = &a->slots[h];
		if (s->stream != NULL) {
			if (op_stream(a, h, piece) < 0)
				return;
			continue;
		}
		off_t at = position(s);
		begin(a, "write %d %ld %zu", h, (long)at, piece);
		fill(a, a->data, at, piece);
		if (end(a, write(s->fd, a->data, piece), "") < 0)
			break;
	}
	if (chance(a, 2))
		op_sync(a, h);
	op_close(a, h);
	sprintf(name, "ck%d", (int)chance(a, 4));
	op_rename(a, "tmp", name);
}

static void step(struct actor *a)
{
	static const char *const how[] = { "c", "ct", "ca", "cx", "-", "cts", "cas", "c" };
	char name[32];
	int h = chance(a, SLOTS);
	struct slot *s = &a->slots[h];
	uint64_t c = chance(a, 100);

	if (c < 6) {
		checkpoint(a);
	} else if (c < 24) {
		op_name(a);
	} else if (c < 30) {
		op_truncate(a, h);
	} else if (c < 34) {
		op_stat(a);
	} else if (s->fd < 0 || c < 44) {
		op_open(a, h, some_file(a, name), how[chance(a, 8)]);
	} else if (c < 50) {
		op_close(a, h);
	} else if (c < 55) {
		op_sync(a, h);
	} else if (c < 68) {
		op_read(a, h);
	} else if (op_write(a, h, some_size(a)) < 0) {
		for (int i = 0; i < 6; i++) /* it is full */
			op_unlink(a);
		for (h = 0; h < SLOTS; h++)
			op_close(a, h);
	}
}

static int stopped(void)
{
	char stop[4096];

	snprintf(stop, sizeof stop, "%s/stop", out);
	return access(stop, F_OK) == 0;
}

#include "shared.h"

static void close_all(struct actor *a)
{
	for (int h = 0; h < SLOTS; h++)
		op_close(a, h);
}

static void *run(void *arg)
{
	struct actor *a = arg;

	begin(a, "mkdir -");
	end(a, mkdir(path(a, ""), 0700), "");
	while (!stopped())
		step(a);
	close_all(a);
	return NULL;
}

/* What killat.c goes through: the first actor makes a few steps, each time the
 * same, on the only thread. */
static void few_steps(long steps)
{
	struct actor *a = &actors[0];

	prctl(PR_SET_NAME, "count");
	a->random = mix(a->seed);
	begin(a, "mkdir -");
	end(a, mkdir(path(a, ""), 0700), "");
	while (steps-- > 0)
		step(a);
	close_all(a);
}

/* Reading back. */

static void copy_file(struct actor *a, const char *from, const char *to)
{
	size_t n = 1 + chance(a, 1 << 20), got;
	int local = open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
	FILE *stream = NULL;
	int fd = -1;

	if (local < 0)
		die(to);
	if (chance(a, 3) == 0)
		stream = fopen(from, "r");
	else
		fd = open(from, O_RDONLY);
	if (stream == NULL && fd < 0)
		unreadable(from);
	for (off_t at = 0;; at += got) {
		ssize_t r;
		if (stream != NULL) {
			r = fread(a->data, 1, n, stream);
			if (ferror(stream))
				r = -1;
		} else {
			r = chance(a, 2) ? pread(fd, a->data, n, at) : lseek(fd, at, SEEK_SET) < 0 ? -1 : read(fd, a->data, n);
		}
		if (r < 0)
			unreadable(from);
		got = r;
		if (got == 0)
			break;
		if (write(local, a->data, got) != (ssize_t)got)
			die(to);
	}
	if (stream != NULL ? fclose(stream) : close(fd))
		unreadable(from);
	close(local);
}

static void copy(struct actor *a, const char *from, const char *to)
{
	char f[4096], t[4096], link[4096];
	struct stat st;
	DIR *dir = opendir(from);

	if (dir == NULL)
		unreadable(from);
	if (mkdir(to, 0700) != 0)
		die(to);
	for (struct dirent *e; errno = 0, (e = readdir(dir)) != NULL;) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		if (snprintf(f, sizeof f, "%s/%s", from, e->d_name) >= (int)sizeof f ||
		    snprintf(t, sizeof t, "%s/%s", to, e->d_name) >= (int)sizeof t) {
			errno = ENAMETOOLONG;
			die(from);
		}
		if (lstat(f, &st) != 0)
			unreadable(f);
		if (S_ISDIR(st.st_mode)) {
			copy(a, f, t);
		} else if (S_ISLNK(st.st_mode)) {
			ssize_t n = readlink(f, link, sizeof link - 1);
			if (n < 0)
				unreadable(f);
			link[n] = 0;
			if (symlink(link, t) != 0)
				die(t);
		} else {
			copy_file(a, f, t);
		}
	}
	if (errno != 0)
		unreadable(from);
	closedir(dir);
}

/* Only a process that writes decides what became of the calls that an earlier
 * one did not see the end of: MPI_Init makes one, and this. */
static void reach(void)
{
	DIR *dir = NULL;

	if (chmod(mount, 0700) == 0 || errno == ENOSPC)
		dir = opendir(mount);
	if (dir == NULL) {
		int error = errno;
		all("refused %lld %d", now(), error);
		fprintf(stderr, "soak: rank %d: %s: %s\n", rank, mount, strerror(error));
		_exit(NOT_REACHED);
	}
	closedir(dir);
}

/* Copies a directory of the mount, if it is there, under a name that is returned, for others to judge. */
static const char *read_back(struct actor *a, const char *from, const char *as)
{
	static _Thread_local char name[64];
	char to[4096];

	int n = snprintf(name, sizeof name, "r%d.%d.%lld", rank, getpid(), now());
	n = snprintf(to, sizeof to, "%s/readback/%s", out, name);
	if (*as && mkdir(to, 0700) != 0)
		die(to);
	snprintf(to + n, sizeof to - n, "%s", as);
	if (access(from, F_OK) == 0 || errno != ENOENT)
		copy(a, from, to);
	return name;
}

static int number(const char *name, int otherwise)
{
	const char *text = getenv(name);

	return text == NULL ? otherwise : atoi(text);
}

/* Versions go on where the rank before this one was killed: it had fewer than it wrote pieces of 8 bytes. */
static void open_journal(struct actor *a)
{
	char name[4096];

	snprintf(name, sizeof name, "%s/r%d.a%d.journal", out, a->owner, a->number);
	a->journal = open(name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (a->journal < 0 || (tree && flock(a->journal, LOCK_EX) != 0))
		die(name);
	a->version = (round_number << 20) + lseek(a->journal, 0, SEEK_END) / 8;
}

/* Turns: in one tree an actor is played by one rank after the other. Its journal is locked meanwhile. */

static const char passed[] = "= passed .\n";

static int was_passed(struct actor *a)
{
	char last[sizeof passed] = "";
	off_t end = lseek(a->journal, 0, SEEK_END);

	return end >= (off_t)sizeof passed && pread(a->journal, last, sizeof last - 1, end - (sizeof last - 1)) > 0 && strcmp(last, passed) == 0;
}

/* Who has played the actor before was killed, or this is the first turn of the round. */
static void take_over(struct actor *a)
{
	char line[128], home[4096];
	int n = snprintf(line, sizeof line, "\n= start %d of %d pid %d .\n", rank, size, getpid());

	put(a, line, n);
	snprintf(home, sizeof home, "%s/r%d", mount, a->owner);
	if (mkdir(home, 0700) != 0 && errno != EEXIST)
		unreadable(home);
	sprintf(line, "/a%d", a->number);
	const char *name = read_back(a, path(a, ""), line);
	n = snprintf(line, sizeof line, "= readback %s .\n", name);
	put(a, line, n);
	begin(a, "mkdir -");
	end(a, mkdir(path(a, ""), 0700), "");
}

static void play(struct actor *a, int who, int steps)
{
	a->owner = who / ACTORS;
	a->number = who % ACTORS;
	open_journal(a);
	if (!was_passed(a))
		take_over(a);
	while (steps-- > 0)
		step(a);
	close_all(a);
	put(a, passed, sizeof passed - 1);
	close(a->journal);
	a->journal = -1;
}

static void *take_turns(void *arg)
{
	struct actor *a = arg;

	while (!stopped())
		play(a, chance(a, tree * ACTORS), 1 + chance(a, chance(a, 4) ? 20 : 200));
	for (int who = 0; who < tree * ACTORS; who++)
		play(a, who, 0);
	return NULL;
}

static void set_up(uint64_t seed)
{
	for (int i = 0; i < ACTORS; i++)
		actors[i].journal = -1;
	for (int i = 0; i < ACTORS; i++) {
		struct actor *a = &actors[i];
		a->owner = rank;
		a->number = i;
		a->seed = seed;
		a->random = mix(seed ^ mix((uint64_t)getpid() << 16 | rank << 4 | i));
		a->data = malloc(LARGEST);
		if (a->data == NULL)
			die("memory");
		for (int h = 0; h < SLOTS; h++)
			a->slots[h].fd = -1;
		if (!tree)
			open_journal(a);
	}
}

/* All actors have files of their own, which no other rank sees. */
static void start_alone(void)
{
	all("start %d of %d pid %d", rank, size, getpid());
	reach();
	all("readback %s", read_back(&actors[0], mount, ""));
}

int main(int argc, char **argv)
{
	pthread_t threads[ACTORS], sharing;

	if (argc != 5) {
		fprintf(stderr, "usage: rank MOUNT OUT SEED ROUND\n");
		return 2;
	}
	mount = argv[1];
	out = argv[2];
#ifdef SOAK_MPI
	/* A failure of MPI_Init is the error of what follows. */
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
#else
	rank = number("PMI_RANK", 0);
	size = number("PMI_SIZE", 1);
#endif
	round_number = strtoul(argv[4], NULL, 0);
	tree = number("SOAK_TREE", 0);
	set_up(strtoull(argv[3], NULL, 0));
	set_up_shared(strtoull(argv[3], NULL, 0));
	if (tree)
		reach();
	else
		start_alone();
	if (number("SOAK_STEPS", -1) >= 0) {
		few_steps(number("SOAK_STEPS", 0));
		return 0;
	}
	if (shared != NULL && pthread_create(&sharing, NULL, share, &common) != 0)
		die("thread");
	for (int i = 0; i < ACTORS; i++)
		if (pthread_create(&threads[i], NULL, tree ? take_turns : run, &actors[i]) != 0)
			die("thread");
	for (int i = 0; i < ACTORS; i++)
		pthread_join(threads[i], NULL);
	if (shared != NULL)
		pthread_join(sharing, NULL);
	all("stopped");
#ifdef SOAK_MPI
	MPI_Finalize();
#endif
	return 0;
}
