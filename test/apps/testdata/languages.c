/* Opens a file in C and closes it in Fortran. The next file, of fewer ranks, may get the same handle. These ranks write it together. Then writes
 * in each language a file that was opened in the other one: prints how many bytes of an earlier write are lost. */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 64, WIDTH = 64, RANKS = 16 };

void mpi_file_close_(MPI_Fint *file, MPI_Fint *error);
void mpi_file_open_(MPI_Fint *communicator, const char *name, MPI_Fint *mode, MPI_Fint *info, MPI_Fint *file, MPI_Fint *error, size_t length);
void mpi_file_write_all_(MPI_Fint *file, void *data, MPI_Fint *count, MPI_Fint *type, MPI_Fint *status, MPI_Fint *error);

static void open_file(MPI_Comm communicator, const char *dir, const char *name, MPI_File *f)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	if (MPI_File_open(communicator, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, f) != MPI_SUCCESS) {
		printf("%s cannot be opened\n", name);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

/* fill writes columns of the ranks by one call for each row, then the others by a collective call. */
static void fill(MPI_File f, bool fortran, int rank, int ranks)
{
	static char own[ROWS * WIDTH];
	MPI_Datatype column;

	memset(own, 'a' + rank, sizeof own);
	for (int k = 0; k < ROWS; k++)
		MPI_File_write_at(f, (MPI_Offset)WIDTH * (2 * ranks * k + rank), own, WIDTH, MPI_CHAR, MPI_STATUS_IGNORE);
	memset(own, 'A' + rank, sizeof own);
	MPI_Type_vector(ROWS, WIDTH, 2 * ranks * WIDTH, MPI_CHAR, &column);
	MPI_Type_commit(&column);
	MPI_File_set_view(f, (MPI_Offset)WIDTH * (ranks + rank), MPI_CHAR, column, "native", MPI_INFO_NULL);
	if (fortran) {
		MPI_Fint handle = MPI_File_c2f(f), count = sizeof own, type = MPI_Type_c2f(MPI_CHAR), status[16], error;

		mpi_file_write_all_(&handle, own, &count, &type, status, &error);
	} else {
		MPI_File_write_all(f, own, sizeof own, MPI_CHAR, MPI_STATUS_IGNORE);
	}
	MPI_File_set_view(f, 0, MPI_CHAR, MPI_CHAR, "native", MPI_INFO_NULL);
	MPI_Type_free(&column);
}

static int lost(MPI_File f, int ranks)
{
	static char got[ROWS * 2 * RANKS * WIDTH];
	int row = 2 * ranks * WIDTH, n = 0;

	MPI_File_read_at(f, 0, got, ROWS * row, MPI_CHAR, MPI_STATUS_IGNORE);
	for (int i = 0; i < ROWS * row; i++) {
		int column = i % row / WIDTH;

		n += got[i] != (column < ranks ? 'a' + column : 'A' + column - ranks);
	}
	return n;
}

/* open_in_fortran opens a file by Fortran's function, and returns C's handle. */
static MPI_File open_in_fortran(const char *dir, const char *name)
{
	char path[4096];
	MPI_Fint communicator = MPI_Comm_c2f(MPI_COMM_WORLD), mode = MPI_MODE_CREATE | MPI_MODE_RDWR, info = MPI_Info_c2f(MPI_INFO_NULL);
	MPI_Fint handle = 0, error = MPI_ERR_OTHER;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	mpi_file_open_(&communicator, path, &mode, &info, &handle, &error, strlen(path));
	if (error != MPI_SUCCESS) {
		printf("%s cannot be opened\n", name);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	return MPI_File_f2c(handle);
}

int main(int argc, char **argv)
{
	MPI_Comm some;
	MPI_File first, second, last, mixed;
	MPI_Fint handle, error;
	int rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Comm_split(MPI_COMM_WORLD, rank < 2, rank, &some);
	open_file(MPI_COMM_WORLD, argv[1], "first", &first);
	open_file(MPI_COMM_WORLD, argv[1], "second", &second);
	MPI_File_close(&first);
	handle = MPI_File_c2f(second);
	mpi_file_close_(&handle, &error);
	open_file(some, argv[1], rank < 2 ? "last" : "other", &last);
	if (rank < 2)
		MPI_File_write_at_all(last, rank, &"ab"[rank], 1, MPI_CHAR, MPI_STATUS_IGNORE);
	if (rank == 0)
		printf("written\n");
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_File_close(&last);
	MPI_Comm_free(&some);
	open_file(MPI_COMM_WORLD, argv[1], "ofc", &mixed);
	fill(mixed, true, rank, ranks);
	if (rank == 0)
		printf("opened in C, written in Fortran: %d bytes are lost\n", lost(mixed, ranks));
	MPI_File_close(&mixed);
	mixed = open_in_fortran(argv[1], "offortran");
	fill(mixed, false, rank, ranks);
	if (rank == 0)
		printf("opened in Fortran, written in C: %d bytes are lost\n", lost(mixed, ranks));
	MPI_File_close(&mixed);
	MPI_Finalize();
	return 0;
}
