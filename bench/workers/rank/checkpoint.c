/*
 * Checkpoints: one file of a rank, written and read in pieces.
 *
 * The data is random and constant, except for a stamp in each STRETCH. The stamp is a function
 * of the checkpoint's stamp and the offset in the file. So data of another checkpoint or
 * another offset is detected at hardly any cost.
 */
#include "rank.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char *piece;    /* buffer for writes and reads */
static unsigned char *original; /* expected contents without the stamps */
static uint64_t piece_size;

static int open_file(const char *path, bool writing)
{
	return writing ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : open(path, O_RDONLY | O_CLOEXEC);
}

static const struct medium files = { open_file, write, read, fsync, close };

/* A file of several ranks is not truncated, since other ranks may have written to it. */
static int open_shared(const char *path, bool writing)
{
	return open(path, writing ? O_WRONLY | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0600);
}

static const struct medium shared = { open_shared, write, read, fsync, close };

static const struct medium *medium_of(const struct checkpoint *c)
{
	if (c->step > 0)
		return &shared;
	return strncmp(c->path, "tcp:", 4) == 0 ? &sockets : &files;
}

/* place returns the offset in the file of the piece at an offset of the checkpoint, and seeks
 * to it. */
static uint64_t place(int fd, const struct checkpoint *c, uint64_t offset)
{
	if (c->step == 0)
		return offset;
	offset = c->first + offset / c->transfer * c->step;
	lseek(fd, (off_t)offset, SEEK_SET); /* if it fails, the comparison finds wrong stamps */
	return offset;
}

static uint64_t stamp_at(const struct checkpoint *c, uint64_t offset)
{
	return (c->stamp + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ offset;
}

bool samples_reserve(struct samples *s, size_t capacity)
{
	if (capacity > s->capacity) {
		int64_t *more = realloc(s->ns, capacity * sizeof *more);

		if (!more)
			return fail("memory for the times of calls");
		s->ns = more;
		s->capacity = capacity;
	}
	memset(s->ns, 0, s->capacity * sizeof *s->ns);
	s->count = 0;
	return true;
}

/* fill allocates n bytes for both buffers, and fills original with random data. */
static bool fill(uint64_t n)
{
	uint64_t x = UINT64_C(0x2545f4914f6cdd1d) * (uint64_t)(rank + 1);

	free(piece);
	free(original);
	piece = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
	original = malloc(n + 8);
	piece_size = 0;
	if (!piece || !original)
		return fail("memory for a piece");
	for (uint64_t i = 0; i < n; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(original + i, &x, 8);
	}
	piece_size = n;
	return true;
}

bool checkpoint_prepare(const struct checkpoint *c, struct result *r)
{
	if (piece_size != c->transfer && !fill(c->transfer))
		return false;
	/* Reads have changed the buffer. */
	memcpy(piece, original, piece_size);
	return samples_reserve(&r->calls, (c->size + c->transfer - 1) / c->transfer);
}

static uint64_t next_piece(const struct checkpoint *c, uint64_t offset)
{
	return c->size - offset < c->transfer ? c->size - offset : c->transfer;
}

static bool short_or_failed(const char *what, const struct checkpoint *c, ssize_t n)
{
	if (n >= 0)
		snprintf(reason, sizeof reason, "%s %.300s: only %zd bytes", what, c->path, n);
	else
		snprintf(reason, sizeof reason, "%s %.300s: %s", what, c->path, strerror(errno));
	return false;
}

static bool write_body(const struct medium *m, int fd, const struct checkpoint *c, struct result *r)
{
	for (uint64_t offset = 0; offset < c->size;) {
		uint64_t n = next_piece(c, offset), at = place(fd, c, offset);

		for (uint64_t i = 0; i + 8 <= n; i += STRETCH) {
			uint64_t stamp = stamp_at(c, at + i);

			memcpy(piece + i, &stamp, sizeof stamp);
		}
		int64_t begin = now();
		ssize_t done = m->write(fd, piece, n);

		samples_add(&r->calls, now() - begin);
		if (done != (ssize_t)n)
			return short_or_failed("write", c, done);
		offset += n;
	}
	return true;
}

bool checkpoint_write(const struct checkpoint *c, struct result *r)
{
	const struct medium *m = medium_of(c);
	int64_t begin = now();
	int fd = m->open(c->path, true);

	if (fd < 0)
		return short_or_failed("open", c, -1);
	int64_t opened = now();
	bool ok = write_body(m, fd, c, r);
	int64_t written = now();

	if (ok && c->sync && m->fsync(fd) != 0)
		ok = short_or_failed("fsync", c, -1);
	int64_t synced = now();

	if (m->close(fd) != 0 && ok)
		ok = short_or_failed("close", c, -1);
	r->open = opened - begin;
	r->body = written - opened;
	r->sync = synced - written;
	r->shut = now() - synced;
	return ok;
}

static bool wrong(const struct checkpoint *c, uint64_t offset)
{
	snprintf(reason, sizeof reason, "read %.300s: at offset %llu is not what was written there", c->path,
		(unsigned long long)offset);
	return false;
}

static bool compare(const struct checkpoint *c, uint64_t offset, uint64_t n)
{
	for (uint64_t i = 0; i < n; i += STRETCH) {
		uint64_t stamp = stamp_at(c, offset + i), end = n - i < STRETCH ? n : i + STRETCH;
		uint64_t stamped = i + 8 <= n ? 8 : 0;

		if (stamped && memcmp(piece + i, &stamp, sizeof stamp) != 0)
			return wrong(c, offset + i);
		if (c->whole && memcmp(piece + i + stamped, original + i + stamped, end - i - stamped) != 0)
			return wrong(c, offset + i);
	}
	return true;
}

static bool read_body(const struct medium *m, int fd, const struct checkpoint *c, struct result *r)
{
	for (uint64_t offset = 0; offset < c->size;) {
		uint64_t n = next_piece(c, offset), at = place(fd, c, offset);
		int64_t begin = now();
		ssize_t done = m->read(fd, piece, n);

		samples_add(&r->calls, now() - begin);
		if (done != (ssize_t)n)
			return short_or_failed("read", c, done);
		/* The data that sockets return is not compared. */
		if (m != &sockets && !compare(c, at, n))
			return false;
		offset += n;
	}
	return true;
}

bool checkpoint_read(const struct checkpoint *c, struct result *r)
{
	const struct medium *m = medium_of(c);
	int64_t begin = now();
	int fd = m->open(c->path, false);

	if (fd < 0)
		return short_or_failed("open", c, -1);
	int64_t opened = now();
	bool ok = read_body(m, fd, c, r);
	int64_t done = now();

	if (m->close(fd) != 0 && ok)
		ok = short_or_failed("close", c, -1);
	r->open = opened - begin;
	r->body = done - opened;
	r->shut = now() - done;
	return ok;
}
