/* Each rank writes a script to the directory argv[1], copies the library argv[2] there, executes the script and loads the
 * library. Rank 0 prints "ok" if all ranks have succeeded. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed;

static void check(int good, const char *what)
{
	if (good)
		return;
	failed = 1;
	perror(what);
}

int main(int argc, char **argv)
{
	char path[4096], command[3 * 4096], library[4096];
	int rank, all, size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	snprintf(path, sizeof path, "%s/script", argv[1]);
	FILE *f = fopen(path, "w");

	check(f != NULL && fprintf(f, "#!/bin/sh\nexit %d\n", 10 + rank) > 0 && fclose(f) == 0 && chmod(path, 0700) == 0, "script");
	check(system(path) == (10 + rank) << 8, "by its path");
	check(chdir(argv[1]) == 0 && system("./script") == (10 + rank) << 8, "where it is");
	snprintf(library, sizeof library, "%s/library.so", argv[1]);
	snprintf(command, sizeof command, "cp %s %s", argv[2], library);
	check(system(command) == 0, command);
	freopen("/dev/null", "w", stdout); /* the library prints a line */
	check(dlopen(library, RTLD_NOW) != NULL, library);
	MPI_Reduce(&failed, &all, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0)
		fprintf(stderr, "%s\n", all == 0 && size > 1 ? "ok" : "failed");
	MPI_Finalize();
	return 0;
}
