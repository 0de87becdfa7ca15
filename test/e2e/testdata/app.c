/*
 * The application of docs/job-scripts.md: app --from STEP. It counts to 1000
 * steps, and every 100 each rank writes a checkpoint, ckpt.STEP.RANK in the
 * directory CKPT_DIR (/nvmecr if that is not set). With --from it goes on from
 * a checkpoint, which has to be as it was written. APP_DIES is a step that the
 * last rank does not survive, in the middle of its checkpoint, in a run that
 * began before step APP_DIES_BELOW (1 if that is not set). APP_SLEEP is for how
 * many milliseconds a checkpoint's step computes. APP_STAYS is a step that a run
 * from step 0 never ends. Rank 0 tells where it begins and ends.
 */
#include <errno.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS = 1 << 15 };

static long data[WORDS], expected[WORDS];
static int rank, size;

static void fail(const char *path)
{
	fprintf(stderr, "app: rank %d: %s: %s\n", rank, path, errno ? strerror(errno) : "not what was written");
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static long number(const char *name, long other)
{
	const char *value = getenv(name);

	return value ? atol(value) : other;
}

static void fill(long *to, long step)
{
	for (long i = 0; i < WORDS; i++)
		to[i] = step * size + rank + i;
}

static void open_checkpoint(FILE **f, char *path, size_t n, long step, const char *mode)
{
	const char *dir = getenv("CKPT_DIR");

	snprintf(path, n, "%s/ckpt.%ld.%d", dir ? dir : "/nvmecr", step, rank);
	if (!(*f = fopen(path, mode)))
		fail(path);
}

static void save(long step, int dies)
{
	char path[4096];
	FILE *f;

	fill(data, step);
	open_checkpoint(&f, path, sizeof path, step, "w");
	if (fwrite(data, 1, sizeof data / 2, f) != sizeof data / 2 || fflush(f))
		fail(path);
	MPI_Barrier(MPI_COMM_WORLD);
	if (dies)
		raise(SIGKILL);
	if (fwrite((char *)data + sizeof data / 2, 1, sizeof data / 2, f) != sizeof data / 2 || fclose(f))
		fail(path);
}

static void load(long step)
{
	char path[4096];
	FILE *f;

	open_checkpoint(&f, path, sizeof path, step, "r");
	if (fread(data, 1, sizeof data, f) != sizeof data)
		fail(path);
	fclose(f);
	fill(expected, step);
	errno = 0;
	if (memcmp(data, expected, sizeof data))
		fail(path);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc != 3 || strcmp(argv[1], "--from")) {
		fprintf(stderr, "usage: app --from STEP\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	long from = atol(argv[2]), dies = number("APP_DIES", -1);
	int mortal = rank == size - 1 && from < number("APP_DIES_BELOW", 1);

	if (from > 0)
		load(from);
	if (rank == 0) {
		printf("app: %d ranks, from step %ld\n", size, from);
		fflush(stdout);
	}
	for (long step = from + 100; step <= 1000; step += 100) {
		usleep(1000 * (useconds_t)number("APP_SLEEP", 0));
		while (from == 0 && step == number("APP_STAYS", -1))
			pause();
		save(step, mortal && step == dies);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("app: done\n");
	MPI_Finalize();
	return 0;
}
