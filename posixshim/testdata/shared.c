/* Several ranks open one file, argv[1], collectively, which is refused. Then each rank opens its own file alone, which works.
 * With argument "abort" rank 0 opens it later than the others, which abort at once, as programs do. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int calls;

static void handler(MPI_File *f, int *code, ...)
{
	calls += *f == MPI_FILE_NULL && *code != MPI_SUCCESS;
}

int main(int argc, char **argv)
{
	int rank, read = -1, class = 0;
	MPI_Comm half;
	MPI_File f;
	MPI_Status status;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc > 2 && strcmp(argv[2], "abort") == 0) {
		if (rank == 0)
			sleep(2);
		if (MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) != MPI_SUCCESS)
			MPI_Abort(MPI_COMM_WORLD, 3);
	}
	for (int i = 0; i < 3; i++) {
		MPI_Errhandler errors;

		if (i == 2) {
			MPI_File_create_errhandler(handler, &errors);
			MPI_File_set_errhandler(MPI_FILE_NULL, errors);
			MPI_Errhandler_free(&errors);
		}
		int result = MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f);

		MPI_Error_class(result, &class);
		if (result == MPI_SUCCESS || class != MPI_ERR_UNSUPPORTED_OPERATION || f != MPI_FILE_NULL)
			printf("rank %d: open returns %d of class %d\n", rank, result, class);
	}
	MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN); /* with another handler MPICH crashes at the end */
	if (calls != 1)
		printf("rank %d: the error handler was called %d times\n", rank, calls);
	MPI_Comm_split(MPI_COMM_WORLD, rank / 2, 0, &half);
	if (MPI_File_open(half, argv[1], MPI_MODE_RDONLY, MPI_INFO_NULL, &f) == MPI_SUCCESS)
		printf("rank %d: two ranks open a file\n", rank);
	MPI_Comm_free(&half);
	MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &half);
	if (MPI_File_open(half, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) != MPI_SUCCESS ||
	    MPI_File_write_at(f, 0, &rank, 1, MPI_INT, &status) != MPI_SUCCESS ||
	    MPI_File_read_at(f, 0, &read, 1, MPI_INT, &status) != MPI_SUCCESS || MPI_File_close(&f) != MPI_SUCCESS || read != rank)
		printf("rank %d: alone reads %d\n", rank, read);
	MPI_Comm_free(&half);
	if (argc > 2 && (MPI_File_open(MPI_COMM_WORLD, argv[2], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) != MPI_SUCCESS ||
			 MPI_File_close(&f) != MPI_SUCCESS))
		printf("rank %d: a file elsewhere is refused\n", rank);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("ok\n");
	MPI_Finalize();
	return 0;
}
