/* Opens a file in C and closes it in Fortran. The next file, of fewer ranks, may get the same handle. These ranks write it together. */
#include <mpi.h>
#include <stdio.h>

void mpi_file_close_(MPI_Fint *file, MPI_Fint *error);

static void open_file(MPI_Comm communicator, const char *dir, const char *name, MPI_File *f)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	if (MPI_File_open(communicator, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, f) != MPI_SUCCESS) {
		printf("%s cannot be opened\n", name);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

int main(int argc, char **argv)
{
	MPI_Comm some;
	MPI_File first, second, last;
	MPI_Fint handle, error;
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
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
	MPI_Finalize();
	return 0;
}
