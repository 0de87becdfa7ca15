/* A file of HDF5 and one of NetCDF for each rank, below the directory given,
 * written twice and read. */
#include <hdf5.h>
#include <mpi.h>
#include <netcdf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 200, COLUMNS = 500 };

static double a[ROWS][COLUMNS], b[ROWS][COLUMNS];
static int rank;

static void need(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "rank %d: %s\n", rank, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

#define NEED(condition) need(condition, #condition)

static void hdf5(const char *dir)
{
	char path[4096];
	hsize_t dims[] = {ROWS, COLUMNS}, chunk[] = {50, 100};

	snprintf(path, sizeof path, "%s/rank.%d.h5", dir, rank);
	hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
	hid_t space = H5Screate_simple(2, dims, NULL), properties = H5Pcreate(H5P_DATASET_CREATE);

	NEED(f >= 0 && H5Pset_chunk(properties, 2, chunk) >= 0 && H5Pset_obj_track_times(properties, 0) >= 0);
	hid_t d = H5Dcreate(f, "a", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, properties, H5P_DEFAULT);

	NEED(H5Dwrite(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, a) >= 0);
	NEED(H5Fflush(f, H5F_SCOPE_GLOBAL) >= 0);
	NEED(H5Dclose(d) >= 0 && H5Sclose(space) >= 0 && H5Pclose(properties) >= 0 && H5Fclose(f) >= 0);
	f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
	d = H5Dopen(f, "a", H5P_DEFAULT);
	NEED(H5Dread(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, b) >= 0);
	NEED(memcmp(a, b, sizeof a) == 0);
	NEED(H5Dclose(d) >= 0 && H5Fclose(f) >= 0 && H5Fis_hdf5(path) > 0);
}

static void netcdf(const char *dir, const char *name, int mode)
{
	char path[4096];
	int f, dims[2], v;

	snprintf(path, sizeof path, "%s/rank.%d.%s.nc", dir, rank, name);
	NEED(nc_create(path, NC_CLOBBER | mode, &f) == NC_NOERR);
	NEED(nc_def_dim(f, "t", NC_UNLIMITED, &dims[0]) == NC_NOERR && nc_def_dim(f, "x", COLUMNS, &dims[1]) == NC_NOERR);
	NEED(nc_def_var(f, "a", NC_DOUBLE, 2, dims, &v) == NC_NOERR && nc_enddef(f) == NC_NOERR);
	for (size_t t = 0; t < ROWS; t++) {
		size_t start[] = {t, 0}, count[] = {1, COLUMNS};

		NEED(nc_put_vara_double(f, v, start, count, a[t]) == NC_NOERR);
	}
	NEED(nc_sync(f) == NC_NOERR && nc_close(f) == NC_NOERR);
	memset(b, 0, sizeof b);
	NEED(nc_open(path, NC_NOWRITE, &f) == NC_NOERR && nc_get_var_double(f, v, &b[0][0]) == NC_NOERR);
	NEED(memcmp(a, b, sizeof a) == 0 && nc_close(f) == NC_NOERR);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < COLUMNS; j++)
			a[i][j] = rank + i * 0.001 + j;
	for (int again = 0; again < 2; again++) {
		hdf5(argv[1]);
		netcdf(argv[1], "classic", 0);
		netcdf(argv[1], "offset", NC_64BIT_OFFSET);
		netcdf(argv[1], "four", NC_NETCDF4);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		puts("ok");
	MPI_Finalize();
	return 0;
}
