/* Every rank appends a line to each file given, in which % is its rank, between MPI_Init and MPI_Finalize. What
 * ends in a slash is a directory, which is made.
 * Files that follow "-" are read instead. What fails is told on stdout, "errno of FILE". With
 * "wait" first it waits for stdin to end before it finalizes. */
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank;

static void touch(const char *name, const char *mode)
{
	char path[4096];
	const char *at = strchr(name, '%');

	if (at)
		snprintf(path, sizeof path, "%.*s%d%s", (int)(at - name), name, rank, at + 1);
	else
		snprintf(path, sizeof path, "%s", name);
	if (path[strlen(path) - 1] == '/') {
		if (mkdir(path, 0755) && errno != EEXIST)
			printf("%s of %s\n", strerror(errno), path);
		return;
	}
	FILE *f = fopen(path, mode);
	if (!f) {
		printf("%s of %s\n", strerror(errno), path);
		return;
	}
	if (*mode == 'a')
		fprintf(f, "rank %d\n", rank);
	if (fclose(f))
		printf("%s of %s\n", strerror(errno), path);
}

int main(int argc, char **argv)
{
	const char *mode = "a";
	int i = 1, waits;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	waits = argc > 1 && !strcmp(argv[1], "wait");
	for (i += waits; i < argc; i++)
		if (!strcmp(argv[i], "-"))
			mode = "r";
		else
			touch(argv[i], mode);
	fflush(stdout);
	if (waits) {
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0) {
			puts("waiting");
			fflush(stdout);
		}
		for (;;)
			pause();
	}
	return MPI_Finalize();
}
