/* All ranks write, each in its place, what they take for one file: argv[1]. */
#include <mpi.h>
#include <stdio.h>

static int fails(int r, const char *what)
{
	if (r != MPI_SUCCESS)
		printf("%s fails\n", what);
	return r != MPI_SUCCESS;
}

int main(int argc, char **argv)
{
	int rank, read = -1;
	MPI_File f;
	MPI_Status status;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int i = 0; i < 2; i++) {
		MPI_Offset off = rank * (MPI_Offset)sizeof rank;

		if (fails(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f), "open") ||
		    fails(MPI_File_write_at(f, off, &rank, 1, MPI_INT, &status), "write") ||
		    fails(MPI_File_read_at(f, off, &read, 1, MPI_INT, &status), "read") || fails(MPI_File_close(&f), "close"))
			break;
	}
	if (!fails(MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_RDONLY, MPI_INFO_NULL, &f), "open alone"))
		MPI_File_close(&f);
	/* One rank makes a file for all; what nobody has made is not there. */
	char made[4096];

	snprintf(made, sizeof made, "%s.made", argv[1]);
	if (rank == 0)
		fclose(fopen(made, "w"));
	MPI_Barrier(MPI_COMM_WORLD);
	if (!fails(MPI_File_open(MPI_COMM_WORLD, made, MPI_MODE_WRONLY, MPI_INFO_NULL, &f), "open of what rank 0 has made"))
		MPI_File_close(&f);
	snprintf(made, sizeof made, "%s.missing", argv[1]);
	if (MPI_File_open(MPI_COMM_WORLD, made, MPI_MODE_WRONLY, MPI_INFO_NULL, &f) == MPI_SUCCESS)
		printf("rank %d opens what is not there\n", rank);
	if (read != rank)
		printf("rank %d reads %d\n", rank, read);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("ok\n");
	MPI_Finalize();
	return 0;
}
