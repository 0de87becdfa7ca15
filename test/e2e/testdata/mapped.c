/* All ranks map one file and write to it, each to its own part.
 *
 *     mapped FILE
 *
 * It prints "ok" from rank 0, or what is wrong from whoever finds it, and ends with 1. */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROW = 100003, TURNS = 3000 }; /* rows end within pages; numbers of the ranks in turn fill pages */

static int rank, size;

static void must(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "rank %d of %d: %s: %s\n", rank, size, what, strerror(errno));
	MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv)
{
	const char *path = argc > 1 ? argv[1] : "";
	size_t turns, length;
	char *memory;
	double number;
	int fd;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	turns = ((size_t)size * ROW + 7) / 8 * 8;
	length = turns + TURNS * (size_t)size * sizeof number;
	if (rank == 0) {
		fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
		must(fd >= 0 && ftruncate(fd, (off_t)length) == 0 && close(fd) == 0, "make");
	}
	MPI_Barrier(MPI_COMM_WORLD);

	fd = open(path, O_RDWR);
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(memory != MAP_FAILED, "map to write");
	MPI_Barrier(MPI_COMM_WORLD);
	for (int round = 1; round <= 2; round++) {
		memset(memory + (size_t)rank * ROW, rank + 10 * round, ROW);
		for (int i = 0; i < TURNS; i++) {
			number = 1 + rank + 0.1 * i + round;
			memcpy(memory + turns + (size_t)(i * size + rank) * sizeof number, &number, sizeof number);
		}
		must(msync(memory, length, MS_SYNC) == 0, "msync");
	}
	must(munmap(memory, length) == 0 && close(fd) == 0, "munmap");
	MPI_Barrier(MPI_COMM_WORLD);

	fd = open(path, O_RDONLY);
	memory = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
	must(memory != MAP_FAILED, "map to read");
	for (size_t i = 0; i < (size_t)size * ROW; i++)
		must(memory[i] == (char)(i / ROW + 20), "a row has other bytes");
	for (int i = 0; i < TURNS * size; i++) {
		memcpy(&number, memory + turns + (size_t)i * sizeof number, sizeof number);
		must(number == 1 + i % size + 0.1 * (i / size) + 2, "a number is another one");
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		puts("ok");
	return MPI_Finalize();
}
