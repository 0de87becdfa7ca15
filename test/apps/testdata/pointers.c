/* One file of all ranks, with the file pointer that they share, and with MPI_File_set_size. `pointers DIRECTORY write`, then `pointers DIRECTORY read` with
 * any number of ranks. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { PART = 1009, RECORDS = 24 };

static int rank, size, part[PART];

static void need(int ok, const char *path, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "rank %d: %s: %s\n", rank, path, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

#define NEED(condition) need(condition, path, #condition)

static void fill(int n)
{
	for (int i = 0; i < PART; i++)
		part[i] = n * PART + i;
}

/* Each rank writes a record in the order of the ranks, several times; then each reads one. */
static void ordered(const char *path)
{
	static int got[PART];
	MPI_File f;
	MPI_Offset at = 0;

	NEED(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) == MPI_SUCCESS);
	for (int n = rank; n < RECORDS; n += size) {
		fill(n);
		NEED(MPI_File_write_ordered(f, part, PART, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
	}
	NEED(MPI_File_get_position_shared(f, &at) == MPI_SUCCESS && at == (MPI_Offset)RECORDS * (MPI_Offset)sizeof part);
	NEED(MPI_File_sync(f) == MPI_SUCCESS);
	MPI_Barrier(MPI_COMM_WORLD);
	NEED(MPI_File_sync(f) == MPI_SUCCESS);
	NEED(MPI_File_seek_shared(f, (MPI_Offset)4 * (MPI_Offset)sizeof part, MPI_SEEK_SET) == MPI_SUCCESS);
	NEED(MPI_File_read_ordered(f, got, PART, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
	fill(4 + rank);
	NEED(memcmp(got, part, sizeof part) == 0);
	NEED(MPI_File_close(&f) == MPI_SUCCESS);
}

/* Each rank writes records where the pointer is: in any order, each once. */
static void shared(const char *path)
{
	MPI_File f;

	NEED(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) == MPI_SUCCESS);
	for (int n = rank; n < RECORDS; n += size) {
		fill(n);
		NEED(MPI_File_write_shared(f, part, PART, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
	}
	NEED(MPI_File_close(&f) == MPI_SUCCESS);
}

static void check_ordered(const char *path, MPI_File f)
{
	static int got[PART];

	for (int n = 0; n < RECORDS; n++) {
		fill(n);
		NEED(MPI_File_read_at(f, (MPI_Offset)n * (MPI_Offset)sizeof part, got, PART, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
		NEED(memcmp(got, part, sizeof part) == 0);
	}
}

static void check_shared(const char *path, MPI_File f)
{
	static int got[PART], seen[RECORDS];

	memset(seen, 0, sizeof seen);
	for (int n = 0; n < RECORDS; n++) {
		NEED(MPI_File_read_at(f, (MPI_Offset)n * (MPI_Offset)sizeof part, got, PART, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
		NEED(got[0] % PART == 0 && got[0] / PART < RECORDS && !seen[got[0] / PART]);
		fill(got[0] / PART);
		NEED(memcmp(got, part, sizeof part) == 0);
		seen[got[0] / PART] = 1;
	}
}

/* The file is cut off behind its first record, and extended again: the rest is zeros, but for the last record. */
static void sized(const char *path, int write)
{
	static int got[PART], zeros[PART];
	const MPI_Offset all = (MPI_Offset)RECORDS * (MPI_Offset)sizeof part;
	MPI_Offset now = 0;
	MPI_File f;

	NEED(MPI_File_open(MPI_COMM_WORLD, path, write ? MPI_MODE_CREATE | MPI_MODE_RDWR : MPI_MODE_RDONLY, MPI_INFO_NULL, &f) == MPI_SUCCESS);
	for (int n = rank; write && n < RECORDS; n += size) {
		fill(n);
		NEED(MPI_File_write_at(f, (MPI_Offset)n * (MPI_Offset)sizeof part, part, PART, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (write) {
		NEED(MPI_File_set_size(f, (MPI_Offset)sizeof part) == MPI_SUCCESS);
		NEED(MPI_File_get_size(f, &now) == MPI_SUCCESS && now == (MPI_Offset)sizeof part);
		MPI_Barrier(MPI_COMM_WORLD);
		NEED(MPI_File_set_size(f, all) == MPI_SUCCESS);
		fill(RECORDS - 1);
		if (rank == size - 1)
			NEED(MPI_File_write_at(f, all - (MPI_Offset)sizeof part, part, PART, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	NEED(MPI_File_get_size(f, &now) == MPI_SUCCESS && now == all);
	for (int n = 0; n < RECORDS; n++) {
		fill(n);
		NEED(MPI_File_read_at(f, (MPI_Offset)n * (MPI_Offset)sizeof part, got, PART, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
		NEED(memcmp(got, n == 0 || n == RECORDS - 1 ? part : zeros, sizeof part) == 0);
	}
	NEED(MPI_File_close(&f) == MPI_SUCCESS);
}

int main(int argc, char **argv)
{
	char path[4096];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc != 3 || RECORDS % size != 0)
		MPI_Abort(MPI_COMM_WORLD, 2);
	int write = strcmp(argv[2], "write") == 0;

	for (int in_order = 0; in_order < 2; in_order++) {
		MPI_File f;

		snprintf(path, sizeof path, "%s/%s", argv[1], in_order ? "ordered" : "shared");
		if (write)
			(in_order ? ordered : shared)(path);
		else if (!in_order)
			continue;
		NEED(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &f) == MPI_SUCCESS);
		(in_order ? check_ordered : check_shared)(path, f);
		NEED(MPI_File_close(&f) == MPI_SUCCESS);
		if (!in_order && rank == 0) /* its bytes differ from run to run */
			NEED(MPI_File_delete(path, MPI_INFO_NULL) == MPI_SUCCESS);
	}
	snprintf(path, sizeof path, "%s/sized", argv[1]);
	sized(path, write);
	if (rank == 0)
		printf("%s ok\n", argv[2]);
	MPI_Finalize();
	return 0;
}
