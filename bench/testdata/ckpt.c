/*
 * The application's side of the measurements.
 *
 *   ckpt DIR MIB ROUNDS   each rank writes MIB in pieces of 1 MiB, with fsync
 *                         and close, then reads it back; rank 0 prints for
 *                         each round "write SECONDS" and "read SECONDS", from
 *                         the first rank's begin to the last one's end
 *   ckpt DIR              each rank asks once for a file that is not there;
 *                         rank 0 prints "memory KIB", the largest resident
 *                         set of any rank
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };

static int rank;

static void check(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "ckpt: rank %d: ", rank);
	perror(what);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

/*
 * meet is a barrier at which ranks sleep. MPI's own spins, and ranks that are
 * done would take the processor from those that are not.
 */
static void meet(void)
{
	MPI_Request request;
	int done = 0;

	MPI_Ibarrier(MPI_COMM_WORLD, &request);
	for (;;) {
		MPI_Test(&request, &done, MPI_STATUS_IGNORE);
		if (done)
			return;
		usleep(100);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* print prints the largest value of any rank. */
static void print(const char *what, double own)
{
	double most;

	MPI_Reduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("%s %.9f\n", what, most);
		fflush(stdout);
	}
}

/* span prints the time from the first rank's begin to the last one's end. */
static void span(const char *what, double begin)
{
	double first, end = now();

	meet();
	MPI_Allreduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
	print(what, end - first);
}

static void write_file(const char *path, char *piece, long mib)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	check(fd >= 0, path);
	for (long i = 0; i < mib; i++) {
		memcpy(piece, &i, sizeof i);
		check(write(fd, piece, PIECE) == PIECE, "write");
	}
	check(fsync(fd) == 0 && close(fd) == 0, "fsync");
}

static void read_file(const char *path, char *piece, long mib)
{
	int fd = open(path, O_RDONLY);

	check(fd >= 0, path);
	for (long i = 0; i < mib; i++) {
		check(read(fd, piece, PIECE) == PIECE, "read");
		check(memcmp(piece, &i, sizeof i) == 0, "wrong data");
	}
	check(close(fd) == 0, "close");
}

static void bandwidth(const char *dir, long mib, long rounds)
{
	char path[4096];
	char *piece = malloc(PIECE);

	check(piece != NULL, "malloc");
	for (int i = 0; i < PIECE; i++)
		piece[i] = (char)(i * 31 + rank);
	snprintf(path, sizeof path, "%s/ckpt.%d", dir, rank);
	for (long round = 0; round < rounds; round++) {
		meet();
		double begin = now();
		write_file(path, piece, mib);
		span("write", begin);
		meet();
		begin = now();
		read_file(path, piece, mib);
		span("read", begin);
	}
	check(unlink(path) == 0, "unlink");
	free(piece);
}

/* resident is the process's resident set in KiB. */
static double resident(void)
{
	char line[256];
	double kib = 0;
	FILE *f = fopen("/proc/self/status", "r");

	check(f != NULL, "/proc/self/status");
	while (fgets(line, sizeof line, f))
		sscanf(line, "VmRSS: %lf", &kib);
	fclose(f);
	return kib;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc == 4) {
		bandwidth(argv[1], atol(argv[2]), atol(argv[3]));
	} else if (argc == 2) {
		char path[4096];
		struct stat st;

		snprintf(path, sizeof path, "%s/absent", argv[1]);
		(void)stat(path, &st);
		print("memory", resident());
	} else {
		fprintf(stderr, "usage: ckpt DIR [MIB ROUNDS]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	MPI_Finalize();
	return 0;
}
