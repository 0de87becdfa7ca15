/*
 * Makes one call, selected by its name, many times. The cost of the loop itself is the same
 * with and without the preload, on nvmecr's file system and on another one.
 */
#include "rank.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The object of the calls. */
struct object {
	const char *path;
	int fd;
	FILE *stream;
	char *data;
	size_t size; /* transfer size; for readdir: number of names */
};

/* Each of the following functions makes the i-th call, and returns false if it has failed. */

static bool call_write(struct object *o, int64_t i)
{
	(void)i;
	return write(o->fd, o->data, o->size) == (ssize_t)o->size;
}

static bool call_pwrite(struct object *o, int64_t i)
{
	return pwrite(o->fd, o->data, o->size, i * (off_t)o->size) == (ssize_t)o->size;
}

static bool call_read(struct object *o, int64_t i)
{
	(void)i;
	return read(o->fd, o->data, o->size) >= 0; /* read returns 0 for /dev/null */
}

static bool call_fstat(struct object *o, int64_t i)
{
	struct stat st;

	(void)i;
	return fstat(o->fd, &st) == 0;
}

static bool call_stat(struct object *o, int64_t i)
{
	struct stat st;

	(void)i;
	return stat(o->path, &st) == 0;
}

static bool call_open(struct object *o, int64_t i)
{
	int fd = open(o->path, O_RDONLY | O_CLOEXEC);

	(void)i;
	return fd >= 0 && close(fd) == 0;
}

static bool call_open_write(struct object *o, int64_t i)
{
	int fd = open(o->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	(void)i;
	return fd >= 0 && close(fd) == 0;
}

static bool call_fsync(struct object *o, int64_t i)
{
	(void)i;
	return fsync(o->fd) == 0;
}

/* Returns the i-th name with the path as its prefix. */
static const char *nth(const struct object *o, int64_t i)
{
	static char path[4200];

	snprintf(path, sizeof path, "%s%lld", o->path, (long long)i);
	return path;
}

static bool call_mkdir(struct object *o, int64_t i)
{
	return mkdir(nth(o, i), 0700) == 0;
}

static bool call_rmdir(struct object *o, int64_t i)
{
	return rmdir(nth(o, i)) == 0;
}

static bool call_readdir(struct object *o, int64_t i)
{
	DIR *d = opendir(o->path);
	size_t names = 0;

	(void)i;
	if (!d)
		return false;
	while (readdir(d))
		names++;
	errno = EIO;
	return closedir(d) == 0 && names == o->size + 2; /* "." and ".." */
}

static bool call_fwrite(struct object *o, int64_t i)
{
	(void)i;
	return fwrite(o->data, 1, o->size, o->stream) == o->size && fflush(o->stream) == 0;
}

static bool call_fread(struct object *o, int64_t i)
{
	(void)i;
	return fread(o->data, 1, o->size, o->stream) == o->size;
}

/* The calls, with the flags or the stream mode with which the file is opened. */
static const struct kind {
	const char *name;
	bool (*call)(struct object *o, int64_t i);
	int flags; /* -1: the file is not opened */
	const char *mode;
} kinds[] = {
	{ "write", call_write, O_WRONLY | O_CREAT | O_TRUNC, NULL },
	{ "pwrite", call_pwrite, O_WRONLY | O_CREAT | O_TRUNC, NULL },
	{ "overwrite", call_pwrite, O_WRONLY, NULL },
	{ "read", call_read, O_RDONLY, NULL },
	{ "fstat", call_fstat, O_RDONLY, NULL },
	{ "stat", call_stat, -1, NULL },
	{ "open", call_open, -1, NULL },
	{ "open-write", call_open_write, -1, NULL },
	{ "fsync", call_fsync, O_WRONLY | O_CREAT, NULL },
	{ "mkdir", call_mkdir, -1, NULL },
	{ "rmdir", call_rmdir, -1, NULL },
	{ "readdir", call_readdir, -1, NULL },
	{ "fwrite", call_fwrite, -1, "w" },
	{ "fread", call_fread, -1, "r" },
};

static const struct kind *find(const char *name)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (strcmp(kinds[i].name, name) == 0)
			return &kinds[i];
	errno = EINVAL;
	return NULL;
}

/* begin opens the file or stream, if the call needs one. */
static bool begin(struct object *o, const struct kind *k)
{
	static char *data; /* initialized memory, kept for the next command */
	static size_t capacity;

	if (o->size > capacity && k->call != call_readdir) {
		free(data);
		capacity = 0;
		data = aligned_alloc(4096, (o->size + 4095) / 4096 * 4096);
		if (!data)
			return false;
		memset(data, 0x5a, o->size);
		capacity = o->size;
	}
	o->data = data;
	if (k->flags != -1 && (o->fd = open(o->path, k->flags | O_CLOEXEC, 0600)) < 0)
		return false;
	return !k->mode || (o->stream = fopen(o->path, k->mode)) != NULL;
}

static bool end(struct object *o)
{
	if (o->stream)
		return fclose(o->stream) == 0;
	return o->fd < 0 || close(o->fd) == 0;
}

bool calls_make(const char *name, const char *path, int64_t count, size_t n, struct result *r)
{
	const struct kind *k = find(name);
	struct object o = { .path = path, .fd = -1, .size = n };

	if (!k)
		return fail(name);
	if (!begin(&o, k))
		return fail(path);
	int64_t before = now();

	for (int64_t i = 0; i < count; i++)
		if (!k->call(&o, i)) {
			fail(name);
			end(&o);
			return false;
		}
	r->body = now() - before;
	return end(&o) || fail(path);
}
