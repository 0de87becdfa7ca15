/* One file of all ranks in each of several formats, below the directory given: `shared DIRECTORY write`, and
 * `shared DIRECTORY read` with any number of ranks. */
#include <mpi.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef PNETCDF
#include <pnetcdf.h>
#endif

enum { ROWS = 240, COLUMNS = 500 };

static double all[ROWS][COLUMNS], part[ROWS][COLUMNS];
static int rank, size, first, rows; /* of this rank */
static char path[4096];

static void need(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "rank %d: %s: %s\n", rank, path, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

#define NEED(condition) need(condition, #condition)

static void name(const char *dir, const char *base)
{
	snprintf(path, sizeof path, "%s/%s", dir, base);
}

/* A rank's rows one after the other; or, strided, each size'th row. */
static void mpiio(int write, int strided)
{
	MPI_File f;
	MPI_Datatype view;
	int n = rows * COLUMNS;

	if (strided)
		MPI_Type_vector(ROWS / size, COLUMNS, COLUMNS * size, MPI_DOUBLE, &view);
	else
		MPI_Type_contiguous(n, MPI_DOUBLE, &view);
	MPI_Type_commit(&view);
	MPI_Offset start = (MPI_Offset)sizeof(double) * COLUMNS * (strided ? rank : first);

	for (int i = 0; i < rows; i++)
		memcpy(part[i], all[strided ? rank + i * size : first + i], sizeof part[i]);
	NEED(MPI_File_open(MPI_COMM_WORLD, path, write ? MPI_MODE_CREATE | MPI_MODE_RDWR : MPI_MODE_RDONLY, MPI_INFO_NULL, &f) == MPI_SUCCESS);
	NEED(MPI_File_set_view(f, start, MPI_DOUBLE, view, "native", MPI_INFO_NULL) == MPI_SUCCESS);
	static double got[ROWS][COLUMNS];

	if (write) {
		/* half of it by each on its own, then all of it together */
		NEED(MPI_File_write_at(f, 0, part, n / 2, MPI_DOUBLE, MPI_STATUS_IGNORE) == MPI_SUCCESS);
		NEED(MPI_File_sync(f) == MPI_SUCCESS);
		NEED(MPI_File_write_at_all(f, 0, part, n, MPI_DOUBLE, MPI_STATUS_IGNORE) == MPI_SUCCESS);
	} else {
		NEED(MPI_File_read_at(f, 0, got, n, MPI_DOUBLE, MPI_STATUS_IGNORE) == MPI_SUCCESS);
		NEED(memcmp(got, part, (size_t)n * sizeof(double)) == 0);
		memset(got, 0, sizeof got);
		NEED(MPI_File_read_at_all(f, 0, got, n, MPI_DOUBLE, MPI_STATUS_IGNORE) == MPI_SUCCESS);
		NEED(memcmp(got, part, (size_t)n * sizeof(double)) == 0);
	}
	NEED(MPI_File_close(&f) == MPI_SUCCESS);
	MPI_Type_free(&view);
}

/* With filled, one rank writes fill values first, and nothing is flushed. */
static void hdf5(int write, int chunked, int filled)
{
	const double value = -7;
	hsize_t dims[] = {ROWS, COLUMNS}, chunk[] = {50, 100}, start[] = {(hsize_t)first, 0}, count[] = {(hsize_t)rows, COLUMNS};
	hid_t access = H5Pcreate(H5P_FILE_ACCESS), together = H5Pcreate(H5P_DATASET_XFER), properties = H5Pcreate(H5P_DATASET_CREATE);

	NEED(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0 && H5Pset_dxpl_mpio(together, H5FD_MPIO_COLLECTIVE) >= 0);
	NEED(H5Pset_obj_track_times(properties, 0) >= 0 && H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY) >= 0);
	NEED(!chunked || H5Pset_chunk(properties, 2, chunk) >= 0);
	NEED(!filled || H5Pset_fill_value(properties, H5T_NATIVE_DOUBLE, &value) >= 0);
	hid_t f = write ? H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access) : H5Fopen(path, H5F_ACC_RDONLY, access);
	hid_t space = H5Screate_simple(2, dims, NULL), memory = H5Screate_simple(2, count, NULL);

	NEED(f >= 0 && H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0);
	hid_t d = write ? H5Dcreate(f, "a", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, properties, H5P_DEFAULT) : H5Dopen(f, "a", H5P_DEFAULT);

	NEED(d >= 0);
	if (write && filled) {
		NEED(H5Dwrite(d, H5T_NATIVE_DOUBLE, memory, space, H5P_DEFAULT, all[first]) >= 0);
		usleep(rank == 0 ? 200000 : 0); /* the rank that wrote the fill values closes the file last */
	} else if (write) {
		NEED(H5Dwrite(d, H5T_NATIVE_DOUBLE, memory, space, H5P_DEFAULT, all[first]) >= 0);
		NEED(H5Fflush(f, H5F_SCOPE_GLOBAL) >= 0);
		NEED(H5Dwrite(d, H5T_NATIVE_DOUBLE, memory, space, together, all[first]) >= 0);
	} else {
		memset(part, 0, sizeof part);
		NEED(H5Dread(d, H5T_NATIVE_DOUBLE, memory, space, together, part) >= 0);
		NEED(memcmp(part, all[first], (size_t)rows * sizeof part[0]) == 0);
	}
	NEED(H5Dclose(d) >= 0 && H5Sclose(space) >= 0 && H5Sclose(memory) >= 0 && H5Fclose(f) >= 0);
	NEED(H5Pclose(access) >= 0 && H5Pclose(together) >= 0 && H5Pclose(properties) >= 0);
}

/* Compressed chunks of several ranks each, written collectively three times, by other ranks each time, and without MPI_Barrier or a flush in between. One rank
 * at a time has a chunk: it reads what the last one has written, and the bytes of the others come as messages. */
static void compressed(int write)
{
	enum { ROUNDS = 3 };
	static double wanted[ROWS][COLUMNS];
	hsize_t dims[] = {ROWS, COLUMNS}, chunk[] = {50, 100}, start[] = {(hsize_t)first, 0}, count[] = {(hsize_t)rows, COLUMNS};
	hid_t access = H5Pcreate(H5P_FILE_ACCESS), together = H5Pcreate(H5P_DATASET_XFER), properties = H5Pcreate(H5P_DATASET_CREATE);

	NEED(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0 && H5Pset_dxpl_mpio(together, H5FD_MPIO_COLLECTIVE) >= 0);
	NEED(H5Pset_obj_track_times(properties, 0) >= 0 && H5Pset_chunk(properties, 2, chunk) >= 0 && H5Pset_deflate(properties, 1) >= 0);
	hid_t f = write ? H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access) : H5Fopen(path, H5F_ACC_RDONLY, access);
	hid_t space = H5Screate_simple(2, dims, NULL), memory = H5Screate_simple(2, count, NULL);

	NEED(f >= 0 && memory >= 0);
	hid_t d = write ? H5Dcreate(f, "a", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, properties, H5P_DEFAULT) : H5Dopen(f, "a", H5P_DEFAULT);

	NEED(d >= 0);
	for (int round = 1; round <= ROUNDS; round++) {
		int from = (rank + round) % size * rows;

		start[0] = (hsize_t)from;
		NEED(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0);
		for (int i = from; i < from + rows; i++)
			for (int j = 0; j < COLUMNS; j++)
				wanted[i][j] = all[i][j] + (write ? round : ROUNDS);
		if (write) {
			NEED(H5Dwrite(d, H5T_NATIVE_DOUBLE, memory, space, together, wanted[from]) >= 0);
			continue;
		}
		NEED(H5Dread(d, H5T_NATIVE_DOUBLE, memory, space, together, part) >= 0);
		NEED(memcmp(part, wanted[from], (size_t)rows * sizeof part[0]) == 0);
	}
	NEED(H5Dclose(d) >= 0 && H5Sclose(space) >= 0 && H5Sclose(memory) >= 0 && H5Fclose(f) >= 0);
	NEED(H5Pclose(access) >= 0 && H5Pclose(together) >= 0 && H5Pclose(properties) >= 0);
}

/* Attributes of many groups, which are changed twice. The ranks share the writing of metadata. */
static void groups(int write)
{
	enum { GROUPS = 1000, CHANGES = 3 };
	hid_t access = H5Pcreate(H5P_FILE_ACCESS), space = H5Screate(H5S_SCALAR);

	NEED(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0);
	hid_t f = write ? H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access) : H5Fopen(path, H5F_ACC_RDONLY, access);

	NEED(f >= 0);
	for (int change = write ? 0 : CHANGES; change <= CHANGES - write; change++)
		for (int i = 0; i < GROUPS; i++) {
			char group[20];
			int got = 0;

			snprintf(group, sizeof group, "g%d", i);
			hid_t g = write && change == 0 ? H5Gcreate(f, group, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT) : H5Gopen(f, group, H5P_DEFAULT);
			hid_t a = write && change == 0 ? H5Acreate(g, "a", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT) : H5Aopen(g, "a", H5P_DEFAULT);

			NEED(g >= 0 && a >= 0);
			if (write) {
				NEED(H5Awrite(a, H5T_NATIVE_INT, &change) >= 0);
			} else {
				NEED(H5Aread(a, H5T_NATIVE_INT, &got) >= 0);
				NEED(got == CHANGES - 1);
			}
			NEED(H5Aclose(a) >= 0 && H5Gclose(g) >= 0);
		}
	NEED(H5Fclose(f) >= 0 && H5Sclose(space) >= 0 && H5Pclose(access) >= 0);
}

#ifdef PNETCDF
static void netcdf(int write)
{
	int f, dims[2], v = 0;
	MPI_Offset start[] = {first, 0}, count[] = {rows, COLUMNS};

	if (write) {
		NEED(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &f) == NC_NOERR);
		NEED(ncmpi_def_dim(f, "t", NC_UNLIMITED, &dims[0]) == NC_NOERR && ncmpi_def_dim(f, "x", COLUMNS, &dims[1]) == NC_NOERR);
		NEED(ncmpi_def_var(f, "a", NC_DOUBLE, 2, dims, &v) == NC_NOERR && ncmpi_enddef(f) == NC_NOERR);
		NEED(ncmpi_put_vara_double_all(f, v, start, count, all[first]) == NC_NOERR && ncmpi_sync(f) == NC_NOERR);
	} else {
		memset(part, 0, sizeof part);
		NEED(ncmpi_open(MPI_COMM_WORLD, path, NC_NOWRITE, MPI_INFO_NULL, &f) == NC_NOERR);
		NEED(ncmpi_get_vara_double_all(f, v, start, count, part[0]) == NC_NOERR);
		NEED(memcmp(part, all[first], (size_t)rows * sizeof part[0]) == 0);
	}
	NEED(ncmpi_close(f) == NC_NOERR);
}
#else
static void netcdf(int write) { (void)write; } /* Debian has it for Open MPI */
#endif

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc != 3 || ROWS % size != 0)
		MPI_Abort(MPI_COMM_WORLD, 2);
	int write = strcmp(argv[2], "write") == 0;

	rows = ROWS / size;
	first = rank * rows;
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < COLUMNS; j++)
			all[i][j] = i * 0.001 + j;
	for (int strided = 0; strided < 2; strided++) {
		name(argv[1], strided ? "strided" : "segments");
		mpiio(write, strided);
	}
	for (int chunked = 0; chunked < 2; chunked++) {
		name(argv[1], chunked ? "chunked.h5" : "whole.h5");
		hdf5(write, chunked, 0);
		name(argv[1], chunked ? "filledchunks.h5" : "filled.h5");
		hdf5(write, chunked, 1);
	}
	name(argv[1], "compressed.h5");
	compressed(write);
	name(argv[1], "groups.h5");
	groups(write);
	name(argv[1], "classic.nc");
	netcdf(write);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("%s ok\n", argv[2]);
	MPI_Finalize();
	return 0;
}
