/* Each rank writes its own columns of a matrix by itself. Then all write the other columns by one collective call, in which the MPI library
 * may read the first columns, and write them again. Then each rank writes its first columns anew. Prints how many bytes are wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, WIDTH = 64, RANKS = 16 };

static int rank, ranks;
static char own[ROWS * WIDTH];

static void check(int error, const char *what)
{
	if (error != MPI_SUCCESS) {
		printf("%s fails\n", what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

/* write_first writes the rank's first column without the other ranks. */
static void write_first(MPI_File f, char letter)
{
	memset(own, letter + rank, sizeof own);
	for (int k = 0; k < ROWS; k++)
		check(MPI_File_write_at(f, (MPI_Offset)WIDTH * (2 * ranks * k + rank), own, WIDTH, MPI_CHAR, MPI_STATUS_IGNORE), "MPI_File_write_at");
}

static void write_all(MPI_File f)
{
	check(MPI_File_write_all(f, own, sizeof own, MPI_CHAR, MPI_STATUS_IGNORE), "MPI_File_write_all");
}

static void write_at_all(MPI_File f)
{
	check(MPI_File_write_at_all(f, 0, own, sizeof own, MPI_CHAR, MPI_STATUS_IGNORE), "MPI_File_write_at_all");
}

static void write_in_two_calls(MPI_File f)
{
	check(MPI_File_write_at_all_begin(f, 0, own, sizeof own, MPI_CHAR), "MPI_File_write_at_all_begin");
	check(MPI_File_write_at_all_end(f, own, MPI_STATUS_IGNORE), "MPI_File_write_at_all_end");
}

static void write_without_waiting(MPI_File f)
{
	MPI_Request request;

	check(MPI_File_iwrite_all(f, own, sizeof own, MPI_CHAR, &request), "MPI_File_iwrite_all");
	check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
	MPI_Barrier(MPI_COMM_WORLD);
}

/* write_one_by_one begins the collective write of the last rank when that of the first one has been begun. */
static void write_one_by_one(MPI_File f)
{
	MPI_Request request;
	int turn = 0;

	if (rank > 0)
		MPI_Recv(&turn, 1, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	check(MPI_File_iwrite_at_all(f, 0, own, sizeof own, MPI_CHAR, &request), "MPI_File_iwrite_at_all");
	if (rank < ranks - 1)
		MPI_Send(&turn, 1, MPI_INT, rank + 1, 0, MPI_COMM_WORLD);
	check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
	MPI_Barrier(MPI_COMM_WORLD);
}

/* write_second writes the rank's second column. */
static void write_second(MPI_File f, void (*collective)(MPI_File))
{
	MPI_Datatype column;

	MPI_Type_vector(ROWS, WIDTH, 2 * ranks * WIDTH, MPI_CHAR, &column);
	MPI_Type_commit(&column);
	memset(own, 'A' + rank, sizeof own);
	check(MPI_File_set_view(f, (MPI_Offset)WIDTH * (ranks + rank), MPI_CHAR, column, "native", MPI_INFO_NULL), "MPI_File_set_view");
	collective(f);
	check(MPI_File_set_view(f, 0, MPI_CHAR, MPI_CHAR, "native", MPI_INFO_NULL), "MPI_File_set_view");
	MPI_Type_free(&column);
}

static int wrong_bytes(MPI_File f, char first)
{
	static char got[ROWS * 2 * RANKS * WIDTH];
	int row = 2 * ranks * WIDTH, wrong = 0;

	check(MPI_File_read_at(f, 0, got, ROWS * row, MPI_CHAR, MPI_STATUS_IGNORE), "MPI_File_read_at");
	for (int i = 0; i < ROWS * row; i++) {
		int column = i % row / WIDTH;

		wrong += got[i] != (column < ranks ? first + column : 'A' + column - ranks);
	}
	return wrong;
}

static void try(const char *path, MPI_Info info, void (*collective)(MPI_File), const char *what)
{
	MPI_File f;

	check(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &f), "MPI_File_open");
	write_first(f, 'a');
	write_second(f, collective);
	if (rank == 0)
		printf("%s: %d bytes are wrong\n", what, wrong_bytes(f, 'a'));
	MPI_Barrier(MPI_COMM_WORLD);
	write_second(f, collective);
	write_first(f, 'k');
	check(MPI_File_close(&f), "MPI_File_close");
	check(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &f), "MPI_File_open");
	if (rank == 0)
		printf("%s, then written anew: %d bytes are wrong\n", what, wrong_bytes(f, 'k'));
	check(MPI_File_close(&f), "MPI_File_close");
}

int main(int argc, char **argv)
{
	char path[4096];
	MPI_Info buffered, two;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Info_create(&buffered);
	MPI_Info_set(buffered, "romio_cb_write", "enable");
	MPI_Info_set(buffered, "cb_buffer_size", "16384");
	MPI_Info_create(&two);
	MPI_Info_set(two, "romio_cb_write", "enable");
	MPI_Info_set(two, "cb_nodes", "2");
	const struct {
		const char *what;
		MPI_Info info;
		void (*collective)(MPI_File);
	} cases[] = {
		{ "one call", MPI_INFO_NULL, write_all },
		{ "several rounds", buffered, write_at_all },
		{ "two calls", MPI_INFO_NULL, write_in_two_calls },
		{ "two aggregators", two, write_all },
		{ "no wait", MPI_INFO_NULL, write_without_waiting },
		{ "one by one", MPI_INFO_NULL, write_one_by_one },
	};
	const char *io = getenv("OMPI_MCA_io");
	unsigned n = sizeof cases / sizeof *cases;

	if (io != NULL && strcmp(io, "romio321") == 0)
		n -= 2; /* this version crashes in MPI_File_iwrite_all, on a local directory too */
	for (unsigned i = 0; i < n; i++) {
		snprintf(path, sizeof path, "%s/hole%u", argv[1], i);
		try(path, cases[i].info, cases[i].collective, cases[i].what);
	}
	MPI_Info_free(&buffered);
	MPI_Info_free(&two);
	MPI_Finalize();
	return 0;
}
