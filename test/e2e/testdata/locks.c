/* What programs do to files that they protect by locks.
 *
 *     locks DIRECTORY count     each rank increments the numbers in the files record and whole, under locks of fcntl and of flock
 *     locks DIRECTORY stride    each rank writes every size-th block of the file stride, by MPI-IO and each for itself
 *     locks DIRECTORY atomic    all write the same bytes of the file atomic, in MPI-IO's atomic mode: each read finds those of one write, and
 *                               all find the same when nobody writes
 *     locks DIRECTORY die       rank 0 is killed, with locks on the files record and whole
 *
 * It prints "ok" from rank 0, or what is wrong from whoever finds it, and ends with 1. */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { TIMES = 100, BLOCK = 1001, BLOCKS = 300, ROUNDS = 10 };

static int rank, size;
static const char *base;
static unsigned char bytes[BLOCK * BLOCKS];

static void fail(const char *what)
{
	fprintf(stderr, "rank %d of %d: %s: %s\n", rank, size, what, strerror(errno));
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void must(int result, const char *what)
{
	if (result != MPI_SUCCESS)
		fail(what);
}

static const char *path(const char *name)
{
	static char buffer[512];

	snprintf(buffer, sizeof buffer, "%s/%s", base, name);
	return buffer;
}

static int must_open(const char *name)
{
	int fd = open(path(name), O_RDWR | O_CREAT, 0644);

	if (fd < 0)
		fail(name);
	return fd;
}

static void record(int fd, short type)
{
	struct flock lock = {.l_type = type};

	if (fcntl(fd, F_SETLKW, &lock) != 0)
		fail("fcntl");
}

static void whole(int fd, short type)
{
	if (flock(fd, type == F_UNLCK ? LOCK_UN : LOCK_EX) != 0)
		fail("flock");
}

static void increment(const char *name, void (*lock)(int, short))
{
	int fd = must_open(name);

	for (int i = 0; i < TIMES; i++) {
		char text[32] = "";

		lock(fd, F_WRLCK);
		if (pread(fd, text, sizeof text - 1, 0) < 0)
			fail("pread");
		int n = snprintf(text, sizeof text, "%ld\n", strtol(text, NULL, 10) + 1);

		if (pwrite(fd, text, n, 0) != n)
			fail("pwrite");
		lock(fd, F_UNLCK);
	}
	if (close(fd) != 0)
		fail("close");
}

static MPI_File open_file(const char *name)
{
	MPI_File f;
	MPI_Info info;

	MPI_Info_create(&info);
	MPI_Info_set(info, "romio_ds_write", "enable"); /* read, change and write whole buffers, under a lock */
	MPI_Info_set(info, "ind_wr_buffer_size", "65536");
	must(MPI_File_open(MPI_COMM_WORLD, path(name), MPI_MODE_CREATE | MPI_MODE_RDWR, info, &f), name);
	MPI_Info_free(&info);
	return f;
}

static void stride(void)
{
	MPI_File f = open_file("stride");
	MPI_Datatype every;

	MPI_Type_vector(BLOCKS, BLOCK, BLOCK * size, MPI_BYTE, &every);
	MPI_Type_commit(&every);
	must(MPI_File_set_view(f, (MPI_Offset)rank * BLOCK, MPI_BYTE, every, "native", MPI_INFO_NULL), "MPI_File_set_view");
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (unsigned char)(i / 7 + 31 * rank + 1);
	must(MPI_File_write(f, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE), "MPI_File_write");
	must(MPI_File_close(&f), "MPI_File_close");
	MPI_Type_free(&every);
}

/* same reads all bytes, which are of one write, and returns one of them. */
static int same(MPI_File f)
{
	must(MPI_File_read_at(f, 0, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE), "MPI_File_read_at");
	for (size_t i = 1; i < sizeof bytes; i++)
		if (bytes[i] != bytes[0])
			fail("bytes of two writes");
	return bytes[0];
}

static void atomic(void)
{
	MPI_File f = open_file("atomic");
	int last, first;

	must(MPI_File_set_atomicity(f, 1), "MPI_File_set_atomicity");
	for (int round = 0; round < ROUNDS; round++) {
		memset(bytes, round * size + rank + 1, sizeof bytes);
		must(MPI_File_write_at(f, 0, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE), "MPI_File_write_at");
		same(f);
		MPI_Barrier(MPI_COMM_WORLD);
		last = first = same(f);
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Bcast(&first, 1, MPI_INT, 0, MPI_COMM_WORLD);
		if (last != first)
			fail("the last write is not the same for all");
	}
	must(MPI_File_close(&f), "MPI_File_close");
}

static void die(void)
{
	int first = must_open("record"), second = must_open("whole");

	if (rank == 0) {
		record(first, F_WRLCK);
		whole(second, F_WRLCK);
		kill(getpid(), SIGKILL);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	base = argv[1];
	if (strcmp(argv[2], "count") == 0) {
		increment("record", record);
		increment("whole", whole);
	} else if (strcmp(argv[2], "stride") == 0)
		stride();
	else if (strcmp(argv[2], "atomic") == 0)
		atomic();
	else
		die();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		puts("ok");
	return MPI_Finalize();
}
