/* Ranks write the same bytes of one file, one after the other, with MPI_Barrier in between, and without MPI_File_sync: the last write counts, and each
 * rank sees what others have written before the barrier, as on a local file system. `barrier DIRECTORY write`, then `barrier DIRECTORY read`
 * with any number of ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 10007, BLOCKS = 12, ROUNDS = 3 };

static int rank, size, block[BLOCK];

static void need(int ok, const char *path, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "rank %d: %s: %s\n", rank, path, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

#define NEED(condition) need(condition, path, #condition)

static void fill(int n, int round)
{
	for (int i = 0; i < BLOCK; i++)
		block[i] = (n * 10 + round) * BLOCK + i;
}

static void write_block(const char *path, MPI_File f, int n, int round)
{
	fill(n, round);
	NEED(MPI_File_write_at(f, (MPI_Offset)n * sizeof block, block, BLOCK, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
}

static void check_block(const char *path, MPI_File f, int n, int round)
{
	static int got[BLOCK];

	fill(n, round);
	memset(got, 0, sizeof got);
	NEED(MPI_File_read_at(f, (MPI_Offset)n * sizeof block, got, BLOCK, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
	NEED(memcmp(got, block, sizeof block) == 0);
}

/* Rank 0 writes all blocks, or preallocates them. Then each rank writes some, others in each round. */
static void write_file(const char *path, int preallocated)
{
	MPI_File f;

	NEED(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) == MPI_SUCCESS);
	if (preallocated)
		NEED(MPI_File_preallocate(f, (MPI_Offset)BLOCKS * sizeof block) == MPI_SUCCESS);
	for (int n = 0; n < BLOCKS && !preallocated && rank == 0; n++)
		write_block(path, f, n, 0);
	if (!preallocated)
		MPI_Barrier(MPI_COMM_WORLD);
	MPI_Offset all = 0;

	NEED(MPI_File_get_size(f, &all) == MPI_SUCCESS);
	NEED(all == (MPI_Offset)BLOCKS * (MPI_Offset)sizeof block);
	for (int n = 0; n < BLOCKS && !preallocated; n++)
		check_block(path, f, n, 0);
	if (!preallocated)
		MPI_Barrier(MPI_COMM_WORLD);
	for (int round = 1; round <= ROUNDS; round++) {
		for (int n = 0; n < BLOCKS; n++)
			if ((n + round) % size == rank)
				write_block(path, f, n, round);
		usleep(rank == 0 ? 100000 : 0); /* the first writer comes last */
		MPI_Barrier(MPI_COMM_WORLD);
		for (int n = 0; n < BLOCKS; n++)
			check_block(path, f, n, round);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	usleep(rank == 0 ? 100000 : 0);
	NEED(MPI_File_close(&f) == MPI_SUCCESS);
}

int main(int argc, char **argv)
{
	char path[4096];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc != 3)
		MPI_Abort(MPI_COMM_WORLD, 2);
	for (int preallocated = 0; preallocated < 2; preallocated++) {
		MPI_File f;

		snprintf(path, sizeof path, "%s/%s", argv[1], preallocated ? "preallocated" : "written");
		if (strcmp(argv[2], "write") == 0)
			write_file(path, preallocated);
		NEED(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &f) == MPI_SUCCESS);
		for (int n = 0; n < BLOCKS; n++)
			check_block(path, f, n, ROUNDS);
		NEED(MPI_File_close(&f) == MPI_SUCCESS);
	}
	if (rank == 0)
		printf("%s ok\n", argv[2]);
	MPI_Finalize();
	return 0;
}
