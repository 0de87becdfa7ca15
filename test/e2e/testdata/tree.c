/* What programs do with one tree for all ranks.
 *
 *     tree DIRECTORY write   makes it
 *     tree DIRECTORY check   with any number of ranks: reads it, and writes every file over
 *     tree DIRECTORY endless JOURNAL   writes one file of all ranks, and one for each, until it is killed; JOURNAL.RANK has the number of
 *                                      the last round that was synced
 *     tree DIRECTORY kept JOURNAL      with any number of ranks: what endless had noted is there
 *
 * It prints "ok" from rank 0, or what is wrong from whoever finds it, and ends with 1. */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 10007, ROUNDS = 5, LINES = 50 };

static int rank, size;
static const char *base;

static void fail(const char *format, ...)
{
	va_list ap;
	char text[512];

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	fprintf(stderr, "rank %d of %d: %s: %s\n", rank, size, text, strerror(errno));
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static const char *path(const char *format, ...)
{
	static char buffers[4][512];
	static int next;
	char *buffer = buffers[next++ % 4];
	int n = snprintf(buffer, 512, "%s/", base);
	va_list ap;

	va_start(ap, format);
	vsnprintf(buffer + n, 512 - n, format, ap);
	va_end(ap);
	return buffer;
}

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static int must_open(const char *name, int flags)
{
	int fd = open(name, flags, 0644);

	if (fd < 0)
		fail("open %s", name);
	return fd;
}

static void must_close(int fd)
{
	if (close(fd) != 0)
		fail("close");
}

/* What byte a block has, that who wrote in a round. */
static unsigned char byte(int who, int round, int generation, int i) { return 1 + (who * 7 + round * 13 + generation * 29 + i) % 250; }

static void fill(unsigned char *b, int who, int round, int generation)
{
	for (int i = 0; i < BLOCK; i++)
		b[i] = byte(who, round, generation, i);
}

static void must_be(const char *name, const unsigned char *got, int who, int round, int generation)
{
	for (int i = 0; i < BLOCK; i++)
		if (got[i] != byte(who, round, generation, i)) {
			errno = 0;
			fail("%s: block of rank %d, round %d, generation %d: byte %d is %d, not %d", name, who, round, generation, i, got[i],
			     byte(who, round, generation, i));
		}
}

/* A file that all have written, in strides: block r * of + w is of rank w. */
static void check_shared(const char *name, int of, int generation)
{
	unsigned char b[BLOCK];
	struct stat st;
	int fd = must_open(name, O_RDONLY);

	if (fstat(fd, &st) != 0 || st.st_size != (off_t)BLOCK * of * ROUNDS)
		fail("%s: size %lld", name, (long long)st.st_size);
	for (int round = 0; round < ROUNDS; round++)
		for (int who = 0; who < of; who++) {
			off_t at = (off_t)BLOCK * (round * of + who);

			if (pread(fd, b, BLOCK, at) != BLOCK)
				fail("%s: read at %lld", name, (long long)at);
			must_be(name, b, who, round, generation);
		}
	must_close(fd);
}

/* What of ranks have written is written over by those there are, each the blocks of every size-th of them. */
static void write_shared(const char *name, int of, int generation)
{
	unsigned char b[BLOCK];
	int fd = must_open(name, O_RDWR | O_CREAT);

	for (int round = 0; round < ROUNDS; round++)
		for (int who = rank; who < of; who += size) {
			fill(b, who, round, generation);
			if (pwrite(fd, b, BLOCK, (off_t)BLOCK * (round * of + who)) != BLOCK)
				fail("%s: write", name);
		}
	must_close(fd);
}

static void check_own(const char *name, int who, int generation)
{
	unsigned char b[BLOCK];
	int fd = must_open(name, O_RDONLY);

	if (read(fd, b, BLOCK) != BLOCK || read(fd, b + 1, 1) != 0)
		fail("%s: read", name);
	must_be(name, b, who, 0, generation);
	must_close(fd);
}

static void write_own(const char *name, int who, int generation)
{
	unsigned char b[BLOCK];
	int fd = must_open(name, O_WRONLY | O_CREAT | O_TRUNC);

	fill(b, who, 0, generation);
	if (write(fd, b, BLOCK) != BLOCK)
		fail("%s: write", name);
	must_close(fd);
}

static void write_head(int of, int generation)
{
	FILE *f = fopen(path("head"), "w");

	if (f == NULL || fprintf(f, "%d %d\n", of, generation) < 0 || fclose(f) != 0)
		fail("head");
}

static void read_head(int *of, int *generation)
{
	FILE *f = fopen(path("head"), "r");

	if (f == NULL || fscanf(f, "%d %d", of, generation) != 2 || fclose(f) != 0)
		fail("head");
}

/* ---- names ---- */

static void exclusive(void)
{
	int fd = open(path("lock"), O_CREAT | O_EXCL | O_WRONLY, 0600), won = fd >= 0, winners;

	if (fd < 0 && errno != EEXIST)
		fail("O_EXCL");
	if (won)
		must_close(fd);
	MPI_Allreduce(&won, &winners, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (winners != 1)
		fail("%d ranks have made one file with O_EXCL", winners);
	if (rank == 0 && unlink(path("lock")) != 0) /* whoever has made it */
		fail("unlink");
	barrier();
	if (access(path("lock"), F_OK) == 0)
		fail("a file is there that rank 0 has removed");
}

static void directories(void)
{
	char text[64] = "";

	if (rank == 0 && mkdir(path("old"), 0755) != 0)
		fail("mkdir");
	barrier();
	write_own(path("old/%d", rank), rank, 0);
	if (symlink("x", path("old/link%d", rank)) != 0)
		fail("symlink");
	barrier();
	if (rank == size - 1 && rename(path("old"), path("new")) != 0)
		fail("rename of a directory with files of others");
	barrier();
	check_own(path("new/%d", (rank + 1) % size), (rank + 1) % size, 0);
	if (readlink(path("new/link%d", (rank + 1) % size), text, sizeof text) != 1 || *text != 'x')
		fail("readlink");
	barrier();
	if (unlink(path("new/%d", (rank + 1) % size)) != 0 || unlink(path("new/link%d", (rank + 1) % size)) != 0)
		fail("unlink of a file of another rank");
	barrier();
	if (rank == 0 && rmdir(path("new")) != 0)
		fail("rmdir");
	barrier();
	if (access(path("new"), F_OK) == 0 || errno != ENOENT)
		fail("a directory that was removed");
}

/* ---- bytes ---- */

static void append(void)
{
	char line[32];
	int fd = must_open(path("log"), O_WRONLY | O_CREAT | O_APPEND), seen[64][LINES] = {{0}};

	for (int i = 0; i < LINES; i++) {
		int n = snprintf(line, sizeof line, "rank %03d line %03d\n", rank, i);

		if (write(fd, line, n) != n)
			fail("append");
	}
	must_close(fd);
	barrier();
	FILE *f = fopen(path("log"), "r");
	int lines = 0, who, i, last[64];

	memset(last, -1, sizeof last);
	while (f != NULL && fscanf(f, "rank %d line %d\n", &who, &i) == 2) {
		if (who < 0 || who >= size || seen[who][i]++ || i <= last[who])
			fail("log: rank %d, line %d", who, i);
		last[who] = i;
		lines++;
	}
	if (lines != size * LINES || fclose(f) != 0)
		fail("log: %d lines, not %d", lines, size * LINES);
	barrier();
	if (rank == 0 && unlink(path("log")) != 0)
		fail("unlink");
}

/* A cut by one rank takes away what others have written, and what is written behind it begins with zeros. */
static void cuts(void)
{
	unsigned char b[100];
	struct stat st;

	write_shared(path("cut"), size, 1);
	barrier();
	if (rank == size - 1 && truncate(path("cut"), 50) != 0)
		fail("truncate");
	barrier();
	if (stat(path("cut"), &st) != 0 || st.st_size != 50)
		fail("cut: size %lld", (long long)st.st_size);
	barrier();
	if (rank == 0) {
		int fd = must_open(path("cut"), O_WRONLY);

		if (pwrite(fd, "x", 1, 99) != 1)
			fail("write");
		must_close(fd);
	}
	barrier();
	int fd = must_open(path("cut"), O_RDONLY);

	if (read(fd, b, 100) != 100)
		fail("cut: read");
	for (int i = 0; i < 100; i++)
		if (b[i] != (i < 50 ? byte(0, 0, 1, i) : i < 99 ? 0 : 'x'))
			fail("cut: byte %d is %d", i, b[i]);
	must_close(fd);
	barrier();
	if (rank == 0 && unlink(path("cut")) != 0)
		fail("unlink");
}

/* What was synced is seen by who opens then, before any close; who has a file open keeps it when it is removed. */
static void sessions(void)
{
	unsigned char b[BLOCK];
	int fd = must_open(path("open"), O_RDWR | O_CREAT);

	fill(b, rank, 2, 2);
	if (pwrite(fd, b, BLOCK, (off_t)rank * BLOCK) != BLOCK || fsync(fd) != 0)
		fail("fsync");
	barrier();
	int other = (rank + 1) % size, again = must_open(path("open"), O_RDONLY);

	if (pread(again, b, BLOCK, (off_t)other * BLOCK) != BLOCK)
		fail("read of what another rank has synced");
	must_be("open", b, other, 2, 2);
	barrier();
	if (rank == 0 && unlink(path("open")) != 0)
		fail("unlink");
	barrier();
	if (pread(again, b, BLOCK, (off_t)other * BLOCK) != BLOCK)
		fail("read of a file that was removed");
	must_be("open", b, other, 2, 2);
	must_close(again);
	must_close(fd);
}

static void mpi_io(int generation)
{
	unsigned char b[BLOCK];
	MPI_File f;
	MPI_Offset length;
	MPI_Datatype stride;

	if (MPI_File_open(MPI_COMM_WORLD, path("mpiio"), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) != MPI_SUCCESS)
		fail("MPI_File_open");
	fill(b, rank, 0, generation);
	if (MPI_File_write_at_all(f, (MPI_Offset)rank * BLOCK, b, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS)
		fail("MPI_File_write_at_all");
	if (MPI_File_sync(f) != MPI_SUCCESS)
		fail("MPI_File_sync");
	barrier();
	if (MPI_File_sync(f) != MPI_SUCCESS)
		fail("MPI_File_sync");
	if (MPI_File_read_at(f, (MPI_Offset)((rank + 1) % size) * BLOCK, b, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS)
		fail("MPI_File_read_at");
	must_be("mpiio", b, (rank + 1) % size, 0, generation);
	/* A view: each rank every size-th block behind what there is. */
	MPI_Type_vector(ROUNDS, BLOCK, BLOCK * size, MPI_BYTE, &stride);
	MPI_Type_commit(&stride);
	if (MPI_File_set_view(f, (MPI_Offset)(size + rank) * BLOCK, MPI_BYTE, stride, "native", MPI_INFO_NULL) != MPI_SUCCESS)
		fail("MPI_File_set_view");
	for (int round = 0; round < ROUNDS; round++) {
		fill(b, rank, round, generation + 1);
		if (MPI_File_write_all(f, b, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS)
			fail("MPI_File_write_all");
	}
	MPI_Type_free(&stride);
	if (MPI_File_get_size(f, &length) != MPI_SUCCESS || MPI_File_close(&f) != MPI_SUCCESS)
		fail("MPI_File_close");
	barrier();
	int fd = must_open(path("mpiio"), O_RDONLY);

	for (int round = 0; round < ROUNDS; round++)
		for (int who = 0; who < size; who++) {
			if (pread(fd, b, BLOCK, (off_t)BLOCK * (size + round * size + who)) != BLOCK)
				fail("mpiio: read");
			must_be("mpiio", b, who, round, generation + 1);
		}
	must_close(fd);
	barrier();
	if (rank == 0 && MPI_File_delete(path("mpiio"), MPI_INFO_NULL) != MPI_SUCCESS)
		fail("MPI_File_delete");
	barrier();
}

/* close_together: a rank that has closed a file finds in it what all have written, without a barrier. Each rank has more to
 * publish than the one before. */
static void close_together(int generation)
{
	unsigned char b[BLOCK];
	MPI_File f;

	for (int round = 0; round < 3; round++) {
		if (MPI_File_open(MPI_COMM_WORLD, path("closed"), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) != MPI_SUCCESS)
			fail("MPI_File_open");
		fill(b, rank, round, generation);
		for (int i = 50 * rank; i >= 0; i--)
			if (MPI_File_write_at(f, (MPI_Offset)(i * size + rank) * BLOCK, b, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS)
				fail("MPI_File_write_at");
		if (MPI_File_close(&f) != MPI_SUCCESS)
			fail("MPI_File_close");
		int fd = must_open(path("closed"), O_RDONLY);

		for (int who = 0; who < size; who++) {
			if (pread(fd, b, BLOCK, (off_t)who * BLOCK) != BLOCK)
				fail("closed: read");
			must_be("closed", b, who, round, generation);
		}
		must_close(fd);
		barrier();
	}
	if (rank == 0 && MPI_File_delete(path("closed"), MPI_INFO_NULL) != MPI_SUCCESS)
		fail("MPI_File_delete");
	barrier();
}

/* ---- kills ---- */

enum { SLOTS = 64 };

/* The number in the journal of a rank; -1 without one. */
static int noted(const char *journal, int who)
{
	char name[512];
	int round = -1;

	snprintf(name, sizeof name, "%s.%d", journal, who);
	FILE *f = fopen(name, "r");

	if (f != NULL && (fscanf(f, "%d", &round) != 1 || fclose(f) != 0))
		fail("%s", name);
	return round;
}

/* The blocks of SLOTS rounds, and over them those of the next ones. Each second round is written collectively. */
static void endless(const char *journal)
{
	unsigned char b[BLOCK];
	char name[512], line[16];
	int own, notes, before = noted(journal, rank), round;
	MPI_File f;

	snprintf(name, sizeof name, "%s.%d", journal, rank);
	notes = must_open(name, O_WRONLY | O_CREAT);
	/* Who had noted more writes the same bytes again. */
	MPI_Allreduce(&before, &round, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
	if (rank == 0 && mkdir(path("endless"), 0755) != 0 && errno != EEXIST)
		fail("mkdir");
	barrier();
	if (MPI_File_open(MPI_COMM_WORLD, path("together"), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) != MPI_SUCCESS)
		fail("MPI_File_open");
	own = must_open(path("endless/%d", rank), O_WRONLY | O_CREAT);
	while (++round >= 0) {
		int slot = round % SLOTS;
		MPI_Offset at = (MPI_Offset)BLOCK * (slot * size + rank);

		fill(b, rank, round, 3);
		if ((round % 2 ? MPI_File_write_at_all : MPI_File_write_at)(f, at, b, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS)
			fail("a write by MPI-IO");
		if (MPI_File_sync(f) != MPI_SUCCESS)
			fail("MPI_File_sync");
		barrier(); /* an aggregator has synced what it has written for others */
		if (pwrite(own, b, BLOCK, (off_t)BLOCK * slot) != BLOCK || fsync(own) != 0)
			fail("write and fsync");
		int n = snprintf(line, sizeof line, "%10d\n", round > before ? round : before);

		if (pwrite(notes, line, n, 0) != n)
			fail("%s", name);
	}
}

/* Of each slot there is the last round that was noted, or any part of the one that was under way. */
static void must_be_kept(const char *name, int fd, off_t first, int stride, int who, int last)
{
	unsigned char b[BLOCK];

	for (int round = last; round >= 0 && round > last - SLOTS; round--) {
		int later = round == last + 1 - SLOTS ? last + 1 : round;

		if (pread(fd, b, BLOCK, (off_t)BLOCK * (first + round % SLOTS * stride)) != BLOCK)
			fail("%s: read of round %d of rank %d", name, round, who);
		for (int i = 0; i < BLOCK; i++)
			if (b[i] != byte(who, round, 3, i) && b[i] != byte(who, later, 3, i)) {
				errno = 0;
				fail("%s: round %d of rank %d, of %d: byte %d is %d, not %d", name, round, who, last, i, b[i], byte(who, round, 3, i));
			}
	}
}

static void kept(const char *journal)
{
	int of = 0, together = must_open(path("together"), O_RDONLY);

	while (noted(journal, of) >= 0)
		of++;
	if (of == 0)
		fail("%s.0", journal);
	for (int who = rank; who < of; who += size) {
		int own = must_open(path("endless/%d", who), O_RDONLY), last = noted(journal, who);

		must_be_kept("together", together, who, of, who, last);
		must_be_kept("own", own, 0, 1, who, last);
		must_close(own);
	}
	must_close(together);
}

int main(int argc, char **argv)
{
	int of, generation;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc != 3 && argc != 4)
		fail("arguments");
	base = argv[1];
	if (argc == 4) {
		(*argv[2] == 'e' ? endless : kept)(argv[3]);
		barrier();
		if (rank == 0)
			puts("ok");
		return MPI_Finalize();
	}
	of = size, generation = 0;
	if (strcmp(argv[2], "check") == 0) {
		read_head(&of, &generation);
		check_shared(path("shared"), of, generation);
		for (int who = 0; who < of; who++)
			check_own(path("ck/%d", who), who, generation);
		barrier();
		generation++;
	} else if (rank == 0 && mkdir(path("ck"), 0755) != 0) {
		fail("mkdir");
	}
	barrier();
	if (rank == 0)
		write_head(of, generation);
	for (int who = rank; who < of; who += size)
		write_own(path("ck/%d", who), who, generation);
	write_shared(path("shared"), of, generation);
	barrier();
	int seen, then;

	read_head(&seen, &then);
	if (seen != of || then != generation)
		fail("head: %d %d", seen, then);
	check_shared(path("shared"), of, generation);
	for (int who = 0; who < of; who++)
		check_own(path("ck/%d", who), who, generation);
	barrier();
	exclusive();
	directories();
	append();
	cuts();
	sessions();
	mpi_io(generation);
	close_together(generation);
	if (rank == 0)
		puts("ok");
	MPI_Finalize();
	return 0;
}
