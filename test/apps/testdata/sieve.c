/* The ranks but the first write their columns of a matrix, piece by piece. Then rank 0 writes its column by one call. ROMIO takes a lock for
 * that, reads rows, changes them and writes them. Meanwhile the others, which have no lock, may publish what they have written. Prints how
 * many bytes are wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 256, WIDTH = 512, RANKS = 16, TURNS = 16 };

static int rank, ranks;
static char own[ROWS * WIDTH], all[RANKS * ROWS * WIDTH];

static void check(int error, const char *what)
{
	if (error != MPI_SUCCESS) {
		printf("%s fails\n", what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

/* write_pieces: rank 0 waits for the others, by messages that are no barriers. */
static void write_pieces(MPI_File f)
{
	for (int k = 0; rank > 0 && k < ROWS; k++)
		check(MPI_File_write_at(f, (MPI_Offset)WIDTH * (ranks * k + rank), own, WIDTH, MPI_CHAR, MPI_STATUS_IGNORE), "MPI_File_write_at");
	for (int other = 1; rank == 0 && other < ranks; other++)
		MPI_Recv(NULL, 0, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (rank > 0)
		MPI_Send(NULL, 0, MPI_INT, 0, 0, MPI_COMM_WORLD);
}

/* write_column: rank 0 opens the file once more, by itself, to set a view without the others. */
static void write_column(const char *path)
{
	MPI_Datatype column;
	MPI_File f;

	if (rank > 0) {
		MPI_Barrier(MPI_COMM_SELF); /* publishes */
		return;
	}
	MPI_Type_vector(ROWS, WIDTH, ranks * WIDTH, MPI_CHAR, &column);
	MPI_Type_commit(&column);
	check(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDWR, MPI_INFO_NULL, &f), "MPI_File_open");
	check(MPI_File_set_view(f, 0, MPI_CHAR, column, "native", MPI_INFO_NULL), "MPI_File_set_view");
	check(MPI_File_write(f, own, sizeof own, MPI_CHAR, MPI_STATUS_IGNORE), "MPI_File_write");
	check(MPI_File_close(&f), "MPI_File_close");
	MPI_Type_free(&column);
}

int main(int argc, char **argv)
{
	char path[4096];
	int wrong = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int turn = 0; turn < TURNS; turn++) {
		MPI_File f;

		snprintf(path, sizeof path, "%s/sieve%d", argv[1], turn);
		check(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f), "MPI_File_open");
		memset(own, 'a' + rank, sizeof own);
		write_pieces(f);
		write_column(path);
		MPI_Barrier(MPI_COMM_WORLD);
		check(MPI_File_read_at(f, 0, all, ROWS * ranks * WIDTH, MPI_CHAR, MPI_STATUS_IGNORE), "MPI_File_read_at");
		for (int i = 0; rank == 0 && i < ROWS * ranks * WIDTH; i++)
			wrong += all[i] != 'a' + i / WIDTH % ranks;
		check(MPI_File_close(&f), "MPI_File_close");
	}
	if (rank == 0)
		printf("%d bytes are wrong\n", wrong);
	MPI_Finalize();
	return 0;
}
