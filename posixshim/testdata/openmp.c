/* OpenMP threads write and read in argv[1]: each thread its own file, and all threads one file at different offsets. */
#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 30, PIECES = 16, SIZE = 10007 };

static void fill(char *p, int thread, int round, int piece)
{
	for (int i = 0; i < SIZE; i++)
		p[i] = (char)(thread * 31 + round * 7 + piece * 3 + i);
}

/* own has each thread write its own file. */
static long own(const char *dir)
{
	long bad = 0;

#pragma omp parallel num_threads(THREADS) reduction(+ : bad)
	{
		char name[4096], want[SIZE], got[SIZE];

		snprintf(name, sizeof name, "%s/own%d", dir, omp_get_thread_num());
		for (int round = 0; round < ROUNDS; round++) {
			FILE *f = fopen(name, "w");

			for (int piece = 0; piece < PIECES; piece++) {
				fill(want, omp_get_thread_num(), round, piece);
				bad += fwrite(want, 1, SIZE, f) != SIZE;
			}
			bad += fclose(f) != 0;
			f = fopen(name, "r");
			for (int piece = 0; piece < PIECES; piece++) {
				fill(want, omp_get_thread_num(), round, piece);
				bad += fread(got, 1, SIZE, f) != SIZE || memcmp(want, got, SIZE) != 0;
			}
			fclose(f);
		}
	}
	return bad;
}

/* common has the threads write parts of one file through one descriptor. */
static long common(const char *dir)
{
	long bad = 0;
	char name[4096];
	struct stat st;

	snprintf(name, sizeof name, "%s/common", dir);
	for (int round = 0; round < ROUNDS; round++) {
		int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

#pragma omp parallel for num_threads(THREADS) reduction(+ : bad) schedule(dynamic)
		for (int piece = 0; piece < THREADS * PIECES; piece++) {
			char want[SIZE], got[SIZE];

			fill(want, 0, round, piece);
			bad += pwrite(fd, want, SIZE, (off_t)piece * SIZE) != SIZE;
			bad += pread(fd, got, SIZE, (off_t)piece * SIZE) != SIZE || memcmp(want, got, SIZE) != 0;
		}
		bad += fstat(fd, &st) != 0 || st.st_size != (off_t)THREADS * PIECES * SIZE;
		bad += close(fd) != 0;
	}
	return bad;
}

/* appended has the threads append to one file. Every line must be intact. */
static long appended(const char *dir)
{
	long bad = 0, lines = 0;
	char name[4096], line[100];

	snprintf(name, sizeof name, "%s/appended", dir);
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);

#pragma omp parallel for num_threads(THREADS) reduction(+ : bad)
	for (int i = 0; i < 2000; i++) {
		char text[100];
		int n = snprintf(text, sizeof text, "line %d of %0*d\n", i, i % 50, i);

		bad += write(fd, text, (size_t)n) != n;
	}
	close(fd);
	FILE *f = fopen(name, "r");
	int a, b;

	while (fgets(line, sizeof line, f) != NULL && sscanf(line, "line %d of %d", &a, &b) == 2 && a == b)
		lines++;
	fclose(f);
	return bad + labs(2000 - lines);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	printf("own %ld\n", own(argv[1]));
	printf("common %ld\n", common(argv[1]));
	printf("appended %ld\n", appended(argv[1]));
	return 0;
}
