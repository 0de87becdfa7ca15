/*
 * Declarations that the files of the rank program share; see main.c.
 *
 * A function that fails prints nothing. It stores the reason in the variable reason and returns
 * false.
 */
#ifndef RANK_H
#define RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* STRETCH is the distance between the stamps that make the data of each checkpoint unique. */
enum { STRETCH = 32 << 10 };

extern int rank;
extern char reason[512];

bool fail(const char *what); /* adds the text of errno; returns false */

/* Nanoseconds of CLOCK_MONOTONIC, the same clock in all processes of a host. */
int64_t now(void);

/* samples are the times of single calls. */
struct samples {
	int64_t *ns;
	size_t count, capacity;
};

bool samples_reserve(struct samples *s, size_t capacity); /* touches the memory */
static inline void samples_add(struct samples *s, int64_t ns)
{
	if (s->count < s->capacity)
		s->ns[s->count++] = ns;
}

/* result has the measurements of a command. */
struct result {
	int64_t begin, end;             /* of the whole command */
	int64_t open, body, sync, shut; /* durations of its parts */
	struct samples calls;
	char extra[256]; /* more " name=value" results of the command */
};

/*
 * A medium stores checkpoints: files, or the sockets of the baseline. Its functions are like
 * open(2), write(2), read(2), fsync(2) and close(2).
 */
struct medium {
	int (*open)(const char *path, bool writing);
	ssize_t (*write)(int fd, const void *data, size_t n);
	ssize_t (*read)(int fd, void *data, size_t n);
	int (*fsync)(int fd);
	int (*close)(int fd);
};

extern const struct medium sockets; /* a path "tcp:HOST:PORT" */

/* A checkpoint of size bytes in pieces of transfer bytes, in the rank's own file or in a file
 * of several ranks. */
struct checkpoint {
	uint64_t size, transfer, stamp;
	uint64_t first, step; /* location of the pieces in a file of several ranks; step is 0 for the rank's own file */
	bool sync;  /* fsync before close */
	bool whole; /* compare all bytes that are read, not only the stamps */
	char path[4096];
};

bool checkpoint_prepare(const struct checkpoint *c, struct result *r);
bool checkpoint_write(const struct checkpoint *c, struct result *r);
bool checkpoint_read(const struct checkpoint *c, struct result *r);

bool files_create(const char *prefix, long count, struct result *r);
bool files_remove(const char *prefix, long count, struct result *r);

/* calls_make makes a call of calls.c count times. r->body is the duration. */
bool calls_make(const char *name, const char *path, int64_t count, size_t n, struct result *r);

bool compute(int64_t ns, struct result *r); /* a loop that counts its turns */
bool watch(struct result *r); /* number of wake-ups of nvmecr's threads since the last call */
bool pin(int cpu);
bool sleeping_thread(void); /* starts a thread that sleeps for ever */
bool memory(const char *path, struct result *r);

/* serve_sockets receives into, and sends from, size bytes of cold memory. */
int serve_sockets(uint64_t size, int connections);

#endif
