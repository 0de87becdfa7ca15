/* One NetCDF-4 file of all ranks, over parallel HDF5: `netcdf4 DIRECTORY write`, and `netcdf4 DIRECTORY read` with any number of ranks. */
#include <mpi.h>
#include <netcdf.h>
#include <netcdf_par.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 4, ROWS = 240, COLUMNS = 50 };

static double part[ROWS][COLUMNS], got[ROWS][COLUMNS];
static char path[4096];

static void need(int error, const char *what)
{
	if (!error)
		return;
	fprintf(stderr, "%s: %s: %s\n", path, what, nc_strerror(error));
	MPI_Abort(MPI_COMM_WORLD, 1);
}

#define NEED(call) need(call, #call)

static void create(int *f, int *v)
{
	int dims[3];

	NEED(nc_create_par(path, NC_NETCDF4 | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, f));
	NEED(nc_def_dim(*f, "t", NC_UNLIMITED, &dims[0]));
	NEED(nc_def_dim(*f, "y", ROWS, &dims[1]));
	NEED(nc_def_dim(*f, "x", COLUMNS, &dims[2]));
	NEED(nc_def_var(*f, "a", NC_DOUBLE, 3, dims, v));
	NEED(nc_put_att_text(*f, NC_GLOBAL, "title", 5, "ranks"));
	NEED(nc_enddef(*f));
}

int main(int argc, char **argv)
{
	int rank, size, f, v;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc != 3 || ROWS % size != 0)
		MPI_Abort(MPI_COMM_WORLD, 2);
	int write = strcmp(argv[2], "write") == 0;
	int rows = ROWS / size, first = rank * rows;

	snprintf(path, sizeof path, "%s/parallel.nc", argv[1]);
	if (write) {
		create(&f, &v);
	} else {
		NEED(nc_open_par(path, NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &f));
		NEED(nc_inq_varid(f, "a", &v));
	}
	NEED(nc_var_par_access(f, v, NC_COLLECTIVE)); /* an unlimited dimension grows together only */
	for (size_t t = 0; t < STEPS; t++) {
		size_t start[] = {t, (size_t)first, 0}, count[] = {1, (size_t)rows, COLUMNS};

		for (int i = 0; i < rows; i++)
			for (int j = 0; j < COLUMNS; j++)
				part[i][j] = (double)t * 1000 + (first + i) + j * 0.001;
		if (write) {
			NEED(nc_put_vara_double(f, v, start, count, part[0]));
			NEED(nc_sync(f));
		}
		NEED(nc_get_vara_double(f, v, start, count, got[0]));
		need(memcmp(got, part, (size_t)rows * sizeof part[0]) ? NC_EINVAL : 0, "other numbers than were written");
	}
	NEED(nc_close(f));
	if (rank == 0)
		printf("%s ok\n", argv[2]);
	MPI_Finalize();
	return 0;
}
