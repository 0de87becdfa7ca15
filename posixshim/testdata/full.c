/* Streams in the directory argv[1] run out of space in the middle of a buffer: every call that writes the buffer fails with
 * ENOSPC. The file system has less than 64 MiB. Prints the results. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUCH (64 << 20)

static char path[4096];
static char *much;

static FILE *fresh(const char *mode, size_t buffer)
{
	unlink(path);
	FILE *f = fopen(path, mode);

	if (f == NULL) {
		perror(path);
		exit(1);
	}
	if (buffer > 0)
		setvbuf(f, malloc(buffer), _IOFBF, buffer);
	errno = 0;
	return f;
}

static void say(const char *what, int failed, FILE *f)
{
	int error = errno;

	printf("%s: %s %s", what, failed ? "fails" : "succeeds", error != 0 ? strerrorname_np(error) : "0");
	printf(f != NULL ? ", ferror %d\n" : "\n", f != NULL && ferror(f) != 0);
	errno = 0;
}

int main(int argc, char **argv)
{
	int failed;

	if (argc != 2)
		return 2;
	snprintf(path, sizeof path, "%s/full", argv[1]);
	much = calloc(1, MUCH);
	memset(much, 'x', MUCH - 1);

	FILE *f = fresh("w", 0);
	size_t n = fwrite(much, 1, MUCH, f);

	printf("fwrite: some %d, all %d\n", n > 0, n == MUCH);
	say("fwrite", n < MUCH, f);
	failed = fclose(f) != 0;
	say("fclose after it", failed, NULL);

	f = fresh("a", 0);
	while (fwrite(much, 1 << 10, 100, f) == 100)
		;
	say("fwrite in pieces", 1, f);
	clearerr(f);
	failed = fwrite(much, 1, 1 << 20, f) < 1 << 20;
	say("fwrite again", failed, f);
	fclose(f);

	f = fresh("w", 0);
	errno = 0;
	failed = fprintf(f, "%s", much) < 0;
	say("fprintf", failed, f);
	fclose(f);

	f = fresh("w", 0);
	failed = fputs(much, f) == EOF;
	say("fputs", failed, f);
	fclose(f);

	f = fresh("w", MUCH);
	failed = fwrite(much, 1, MUCH - 1, f) < MUCH - 1;
	say("fwrite to the buffer", failed, f);
	failed = fflush(f) != 0;
	say("fflush", failed, f);
	fclose(f);

	f = fresh("w", MUCH);
	fwrite(much, 1, MUCH - 1, f);
	failed = fclose(f) != 0;
	say("fclose", failed, NULL);

	f = fresh("w", MUCH);
	fwrite(much, 1, MUCH - 1, f);
	failed = fseek(f, 0, SEEK_SET) != 0;
	say("fseek", failed, f);
	fclose(f);
	return 0;
}
