/*
 * Heat on a ring of rods, one rod a rank, with a checkpoint of each rod every
 * so many steps: heat DIR FROM EVERY STEPS. FROM is the step to restart from,
 * 0 for the beginning. Rank 0 prints the sum over all rods at each checkpoint,
 * every bit of it.
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CELLS = 1 << 15 };

static double rod[CELLS + 2], next[CELLS + 2];
static int rank, size;

static void fail(const char *what)
{
	fprintf(stderr, "heat: rank %d: ", rank);
	perror(what);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

static void name(char *path, size_t n, const char *dir, long step)
{
	snprintf(path, n, "%s/heat.%ld.%d", dir, step, rank);
}

static void save(const char *dir, long step)
{
	char path[4096];

	name(path, sizeof path, dir, step);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		fail(path);
	/* In odd pieces: most checkpoints are not written in one go. */
	for (size_t done = 0; done < sizeof rod;) {
		size_t piece = sizeof rod - done < 50001 ? sizeof rod - done : 50001;
		ssize_t n = write(fd, (char *)rod + done, piece);
		if (n < 0)
			fail(path);
		done += (size_t)n;
	}
	if (fsync(fd) != 0 || close(fd) != 0)
		fail(path);
}

static void load(const char *dir, long step)
{
	char path[4096];

	name(path, sizeof path, dir, step);
	int fd = open(path, O_RDONLY);
	if (fd < 0 || read(fd, rod, sizeof rod) != (ssize_t)sizeof rod || close(fd) != 0)
		fail(path);
}

static void advance(void)
{
	int left = (rank + size - 1) % size, right = (rank + 1) % size;

	MPI_Sendrecv(&rod[1], 1, MPI_DOUBLE, left, 0, &rod[CELLS + 1], 1, MPI_DOUBLE, right, 0,
		     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Sendrecv(&rod[CELLS], 1, MPI_DOUBLE, right, 1, &rod[0], 1, MPI_DOUBLE, left, 1,
		     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int i = 1; i <= CELLS; i++)
		next[i] = rod[i] + 0.1 * (rod[i - 1] - 2 * rod[i] + rod[i + 1]);
	for (int i = 1; i <= CELLS; i++)
		rod[i] = next[i] * (1 + 1e-9 * i);
}

static void report(long step)
{
	double own = 0, all[1024], sum = 0;

	for (int i = 1; i <= CELLS; i++)
		own += rod[i];
	MPI_Gather(&own, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
	for (int i = 0; i < size; i++)
		sum += all[i];
	if (rank == 0) {
		printf("step %ld %a\n", step, sum);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc != 5 || size > 1024) {
		fprintf(stderr, "usage: heat DIR FROM EVERY STEPS\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	long from = atol(argv[2]), every = atol(argv[3]), steps = atol(argv[4]);

	if (from > 0)
		load(argv[1], from);
	else
		for (int i = 1; i <= CELLS; i++)
			rod[i] = rank + i % 17;
	for (long step = from + 1; step <= steps; step++) {
		advance();
		if (step % every == 0) {
			report(step);
			save(argv[1], step);
		}
	}
	MPI_Finalize();
	return 0;
}
