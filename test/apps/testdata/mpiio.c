/* MPI-IO on a file of each rank's own, below the directory given: every kind
 * of access, by itself and collectively, printed by rank 0 when all agree. */
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 50000 };

static int rank, size;

static void agree(int ok, const char *what)
{
	int all;

	MPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
	if (!ok)
		fprintf(stderr, "rank %d: %s differs\n", rank, what);
	if (rank == 0)
		printf("%s %s\n", what, all ? "ok" : "WRONG");
}

static void check(int code, const char *what)
{
	char text[MPI_MAX_ERROR_STRING];
	int n = 0;

	if (code == MPI_SUCCESS)
		return;
	MPI_Error_string(code, text, &n);
	fprintf(stderr, "rank %d: %s: %.*s\n", rank, what, n, text);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

#define CHECK(call) check(call, #call)

static int same(const double *a, const double *b, int n)
{
	return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

int main(int argc, char **argv)
{
	static double a[COUNT], b[COUNT];
	char path[4096];
	MPI_File f;
	MPI_Offset bytes;
	MPI_Request request;
	MPI_Status status;
	MPI_Datatype every;
	int n;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int i = 0; i < COUNT; i++)
		a[i] = rank + i / 1000.0;
	snprintf(path, sizeof path, "%s/file.%d", argv[1], rank);

	CHECK(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f));
	CHECK(MPI_File_write(f, a, COUNT, MPI_DOUBLE, &status));
	MPI_Get_count(&status, MPI_DOUBLE, &n);
	agree(n == COUNT, "write");
	CHECK(MPI_File_seek(f, 0, MPI_SEEK_SET));
	CHECK(MPI_File_read(f, b, COUNT, MPI_DOUBLE, &status));
	agree(same(a, b, COUNT), "read");
	CHECK(MPI_File_write_at(f, 8000, a, 10, MPI_DOUBLE, &status));
	CHECK(MPI_File_read_at(f, 8000, b, 10, MPI_DOUBLE, &status));
	agree(same(a, b, 10), "read_at");
	CHECK(MPI_File_iwrite_at(f, 80000, a, 100, MPI_DOUBLE, &request));
	MPI_Wait(&request, &status);
	CHECK(MPI_File_iread_at(f, 80000, b, 100, MPI_DOUBLE, &request));
	MPI_Wait(&request, &status);
	agree(same(a, b, 100), "iread_at");
	CHECK(MPI_File_write_at_all(f, 0, a, COUNT, MPI_DOUBLE, &status));
	CHECK(MPI_File_read_at_all(f, 0, b, COUNT, MPI_DOUBLE, &status));
	agree(same(a, b, COUNT), "read_at_all");
	CHECK(MPI_File_sync(f));
	CHECK(MPI_File_get_size(f, &bytes));
	agree(bytes == COUNT * 8, "size");

	/* every second number, with holes read and written back */
	MPI_Type_vector(COUNT / 2, 1, 2, MPI_DOUBLE, &every);
	MPI_Type_commit(&every);
	CHECK(MPI_File_set_view(f, 0, MPI_DOUBLE, every, "native", MPI_INFO_NULL));
	for (int i = 0; i < COUNT / 2; i++)
		b[i] = -i;
	CHECK(MPI_File_write_at(f, 0, b, COUNT / 2, MPI_DOUBLE, &status));
	CHECK(MPI_File_write_at_all(f, 0, b, COUNT / 2, MPI_DOUBLE, &status));
	CHECK(MPI_File_set_view(f, 0, MPI_DOUBLE, MPI_DOUBLE, "native", MPI_INFO_NULL));
	CHECK(MPI_File_read_at(f, 0, b, COUNT, MPI_DOUBLE, &status));
	n = 1;
	for (int i = 0; i < COUNT; i++)
		n = n && b[i] == (i % 2 ? a[i] : -i / 2);
	agree(n, "view");
	MPI_Type_free(&every);

	CHECK(MPI_File_set_size(f, 1000));
	CHECK(MPI_File_get_size(f, &bytes));
	agree(bytes == 1000, "set_size");
	CHECK(MPI_File_preallocate(f, 100000));
	CHECK(MPI_File_get_size(f, &bytes));
	agree(bytes == 100000, "preallocate");
	CHECK(MPI_File_write_shared(f, a, 10, MPI_DOUBLE, &status));
	CHECK(MPI_File_seek_shared(f, 0, MPI_SEEK_SET));
	CHECK(MPI_File_read_shared(f, b, 10, MPI_DOUBLE, &status));
	agree(same(a, b, 10), "shared pointer");
	CHECK(MPI_File_set_atomicity(f, 1));
	CHECK(MPI_File_write_at(f, 0, a, 10, MPI_DOUBLE, &status));
	CHECK(MPI_File_read_at(f, 0, b, 10, MPI_DOUBLE, &status));
	agree(same(a, b, 10), "atomic");
	CHECK(MPI_File_close(&f));

	CHECK(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_WRONLY | MPI_MODE_APPEND, MPI_INFO_NULL, &f));
	CHECK(MPI_File_write(f, a, 1, MPI_DOUBLE, &status));
	CHECK(MPI_File_get_size(f, &bytes));
	agree(bytes == 100008, "append");
	CHECK(MPI_File_close(&f));
	n = MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY, MPI_INFO_NULL, &f);
	MPI_Error_class(n, &n);
	agree(n == MPI_ERR_FILE_EXISTS, "exists");
	snprintf(path, sizeof path, "%s/none.%d", argv[1], rank);
	n = MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &f);
	MPI_Error_class(n, &n);
	agree(n == MPI_ERR_NO_SUCH_FILE, "none");
	CHECK(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &f));
	CHECK(MPI_File_write(f, a, 10, MPI_DOUBLE, &status));
	CHECK(MPI_File_close(&f));
	n = MPI_File_delete(path, MPI_INFO_NULL);
	MPI_Error_class(n, &n);
	agree(n == MPI_ERR_NO_SUCH_FILE, "delete");
	MPI_Finalize();
	return 0;
}
