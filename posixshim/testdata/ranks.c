/* Each rank writes its own file under argv[1], reads it back, and writes another one after MPI_Finalize. With a second argument,
 * it first expects the files of an earlier run. Rank 0 prints "ok" if all ranks have succeeded. */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE (3 << 20)

static int rank, failed;

static void expect(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "rank %d: %s\n", rank, what);
	perror(what);
	failed = 1;
}

static void fill(char *buf)
{
	for (int i = 0; i < SIZE; i++)
		buf[i] = (char)(i * 31 + i / 4099 + rank * 17);
}

static void check_file(const char *path, const char *want)
{
	char *got = malloc(SIZE);
	FILE *f = fopen(path, "r");

	expect(f != NULL && fread(got, 1, SIZE, f) == SIZE, "reading what was written");
	expect(memcmp(got, want, SIZE) == 0, "comparing what was written");
	if (f != NULL)
		fclose(f);
	free(got);
}

/* MPI-IO on the rank's own file. */
static void mpi_io(const char *path, char *buf)
{
	char *got = calloc(1, SIZE);
	MPI_File f;
	MPI_Request r;
	MPI_Status st;

	if (MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) != MPI_SUCCESS) {
		expect(0, "MPI_File_open");
		free(got);
		return;
	}
	MPI_File_write_at(f, 10, buf, SIZE / 2, MPI_CHAR, &st);
	MPI_File_iwrite_at(f, 10 + SIZE / 2, buf + SIZE / 2, SIZE / 2, MPI_CHAR, &r);
	MPI_Wait(&r, &st);
	MPI_File_sync(f);
	MPI_File_read_at(f, 10, got, SIZE, MPI_CHAR, &st);
	expect(memcmp(got, buf, SIZE) == 0, "MPI-IO");
	MPI_File_close(&f);
	free(got);
}

int main(int argc, char **argv)
{
	char path[4096], late[4096], *buf = malloc(SIZE);
	int all, provided;

	if (argc > 2 && strcmp(argv[2], "threads") == 0)
		MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	else
		MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	fill(buf);
	snprintf(path, sizeof path, "%s/checkpoint", argv[1]);
	snprintf(late, sizeof late, "%s/late.%d", argv[1], rank);
	if (argc > 2 && strcmp(argv[2], "again") == 0) {
		check_file(path, buf);
		expect(access(late, F_OK) == 0, "the file written after MPI_Finalize");
	} else {
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

		expect(fd >= 0, "open");
		for (int done = 0; done < SIZE; done += 1 << 20)
			expect(write(fd, buf + done, 1 << 20) == 1 << 20, "write");
		expect(fsync(fd) == 0 && close(fd) == 0, "close");
	}
	snprintf(late, sizeof late, "%s/mpi-io", argv[1]);
	mpi_io(late, buf);
	snprintf(late, sizeof late, "%s/late.%d", argv[1], rank);
	MPI_Barrier(MPI_COMM_WORLD);
	check_file(path, buf);
	MPI_Allreduce(&failed, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	MPI_Finalize();
	FILE *f = fopen(late, "w");

	expect(f != NULL && fputs("after MPI_Finalize\n", f) >= 0 && fclose(f) == 0, "writing after MPI_Finalize");
	if (rank == 0 && !all && !failed)
		printf("ok\n");
	return all || failed;
}
