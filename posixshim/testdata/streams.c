/* Uses FILE streams in the directory argv[1] and prints the results. The test compares a run under the mount with one in a local
 * directory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *dir;

#define P(expr) print(#expr, (long)(expr))

static long print(const char *what, long value)
{
	int e = errno;

	printf("%s = %ld%s%s\n", what, value, value == -1 ? " " : "", value == -1 ? strerrorname_np(e) : "");
	return value;
}

static char *in(const char *name)
{
	static char buf[4][4096];
	static int next;
	char *p = buf[next++ % 4];

	snprintf(p, sizeof buf[0], "%s/%s", dir, name);
	return p;
}

static void text(void)
{
	char *line = NULL, word[32];
	size_t n = 0;
	int a, b;
	FILE *f = fopen(in("text"), "w");

	P(f != NULL);
	P(fprintf(f, "%d %d\nsecond line\n", 12, 34));
	P(fputs("third\n", f) >= 0);
	P(fputc('x', f));
	P(ftell(f));
	P(fflush(f));
	P(fclose(f));
	f = fopen(in("text"), "r");
	P(fscanf(f, "%d %d\n", &a, &b));
	P(a + b);
	P(getline(&line, &n, f));
	printf("%s", line);
	P(fgets(word, sizeof word, f) != NULL);
	printf("%s", word);
	P(ungetc('y', f));
	P(fgetc(f));
	P(fgetc(f));
	P(fgetc(f));
	P(feof(f) != 0);
	rewind(f);
	P(feof(f));
	P(fseek(f, 6, SEEK_SET));
	P(fgets(word, sizeof word, f) != NULL);
	printf("%s", word);
	P(ftell(f));
	P(fseek(f, -1, SEEK_END));
	P(fgetc(f));
	P(fputc('z', f));
	P(ferror(f) != 0);
	P(fclose(f));
	free(line);
}

static void modes(void)
{
	struct stat st;
	char buf[32] = "";
	FILE *f = fopen(in("m"), "w+");

	P(fwrite("0123456789", 1, 10, f));
	P(fseek(f, 2, SEEK_SET));
	P(fread(buf, 1, 3, f));
	P(strcmp(buf, "234"));
	P(fseek(f, 0, SEEK_CUR));
	P(fwrite("X", 1, 1, f));
	P(fflush(f));
	P(fstat(fileno(f), &st));
	P(st.st_size);
	P(ftruncate(fileno(f), 8));
	P(fclose(f));
	f = fopen(in("m"), "a+");
	P(fwrite("tail", 1, 4, f));
	P(fseek(f, 0, SEEK_SET));
	memset(buf, 0, sizeof buf);
	P(fread(buf, 1, sizeof buf, f));
	printf("%s\n", buf);
	P(fclose(f));
	f = fopen(in("m"), "a");
	P(ftell(f));
	P(fputs("!", f) >= 0);
	P(ftell(f));
	P(fclose(f));
	f = fopen(in("m"), "r+e");
	P(fcntl(fileno(f), F_GETFD));
	P(fputs("ab", f) >= 0);
	P(fclose(f));
	P(fopen(in("m"), "wx") == NULL && errno == EEXIST);
	P(fopen(in("nope"), "r") == NULL && errno == ENOENT);
	P(fopen(in("m"), "q") == NULL && errno == EINVAL);
	f = fopen(in("m"), "r");
	memset(buf, 0, sizeof buf);
	P(fread(buf, 1, sizeof buf, f));
	printf("%s\n", buf);
	P(fclose(f));
}

static void large(void)
{
	size_t n = 5 << 20;
	char *a = malloc(n), *b = malloc(n);
	FILE *f = fopen(in("large"), "w");

	for (size_t i = 0; i < n; i++)
		a[i] = (char)(i * 7 + i / 4093);
	P(fwrite(a, 1, 100, f));
	P(fwrite(a + 100, 1, n - 100, f));
	P(fclose(f));
	f = fopen(in("large"), "r");
	P(fread(b, 1, n, f));
	P(memcmp(a, b, n));
	for (int i = 0; i < 100; i++) {
		long at = (long)(i * 50021L % (long)n);

		fseek(f, at, SEEK_SET);
		if (fgetc(f) != (unsigned char)a[at])
			printf("wrong byte at %ld\n", at);
	}
	P(fclose(f));
	f = fopen(in("large"), "r");
	setvbuf(f, NULL, _IONBF, 0);
	P(fread(b, 1, 1000, f));
	P(memcmp(a, b, 1000));
	P(fclose(f));
	free(a);
	free(b);
}

static void reopened(void)
{
	char buf[32] = "";
	int fd = open(in("fd"), O_RDWR | O_CREAT, 0600);
	FILE *f = fdopen(fd, "w+");

	P(fileno(f) == fd);
	P(fputs("fdopen", f) >= 0);
	P(fclose(f));
	P(fcntl(fd, F_GETFD));
	fd = open(in("fd"), O_RDWR | O_TRUNC);
	P(dprintf(fd, "%d%s", 12, "dprintf"));
	P(lseek(fd, 0, SEEK_CUR));
	P(close(fd));
	fd = open(in("fd"), O_RDONLY);
	P(fdopen(fd, "w") == NULL && errno == EINVAL);
	P(close(fd));
	f = fopen(in("fd"), "r");
	f = freopen(in("re"), "w", f);
	P(f != NULL);
	P(fputs("freopen", f) >= 0);
	P(fgetc(f));
	clearerr(f);
	f = freopen(in("fd"), "r", f);
	P(fread(buf, 1, sizeof buf, f));
	printf("%s\n", buf);
	f = freopen("/dev/null", "w", f);
	P(fputs("gone", f) >= 0);
	f = freopen(in("re"), "a+", f);
	P(fputs("+", f) >= 0);
	rewind(f);
	memset(buf, 0, sizeof buf);
	P(fread(buf, 1, sizeof buf, f));
	printf("%s\n", buf);
	P(fclose(f));
	f = fopen("/dev/null", "r");
	f = freopen(in("re"), "r", f);
	P(fgetc(f));
	P(fclose(f));
	f = tmpfile();
	P(fputs("t", f) >= 0);
	P(fclose(f));
}

/* Makes the calls of a shell for a builtin command with redirected output. */
static void redirected(void)
{
	char buf[32] = "";
	int saved = fcntl(1, F_DUPFD_CLOEXEC, 10), fd = open(in("redir"), O_RDWR | O_CREAT, 0600);

	fflush(stdout);
	dup2(fd, 1);
	printf("to the file\n");
	fflush(stdout);
	dup2(saved, 1);
	P(close(saved));
	P(pread(fd, buf, sizeof buf, 0));
	printf("%s", buf);
	P(lseek(fd, 0, SEEK_SET));
	saved = dup(0);
	P(dup2(fd, 0));
	P(scanf("to the %31s", buf));
	printf("%s\n", buf);
	P(dup2(saved, 0));
	P(close(fd) | close(saved));
}

/* right returns how many of the n bytes in b are those of the file at offset at. */
static long right(const unsigned char *b, size_t n, size_t at)
{
	for (size_t i = 0; i < n; i++)
		if (b[i] != (unsigned char)((at + i) * 2654435761u >> 13))
			return (long)i;
	return (long)n;
}

/* gulps reads pieces that are larger than any buffer, with smaller ones in between. */
static void gulps(void)
{
	const size_t n = 3 << 20;
	unsigned char *b = malloc(2 * n);
	FILE *f = fopen(in("gulps"), "w+");

	for (size_t i = 0; i < n; i++)
		b[i] = (unsigned char)(i * 2654435761u >> 13);
	P(fwrite(b, n, 1, f));
	rewind(f);
	for (size_t size = 1; size <= n; size = size * 7 + 1) { /* while it reads and writes */
		long at = ftell(f);

		P(fread(b, 1, size, f));
		P(right(b, (size_t)(ftell(f) - at), (size_t)at));
		P(feof(f) != 0);
	}
	P(fseek(f, -10, SEEK_END));
	P(fread(b, 3, n / 2, f));
	P(feof(f) != 0);
	P(ftell(f));
	P(fputs("more", f) >= 0);
	P(fseek(f, 0, SEEK_SET));
	P(fread(b, 1, 2 * n, f));
	P(right(b, n, 0));
	P(memcmp(b + n, "more", 4));
	P(fread(b, 1, 2 * n, f));
	P(fclose(f));
	f = fopen(in("gulps"), "r");
	P(fgetc(f));
	P(ungetc('u', f)); /* not the character that was read */
	P(fread(b, 1, 1 << 20, f));
	P(b[0]);
	P(right(b + 1, (1 << 20) - 1, 1));
	P(ftell(f));
	P(fread_unlocked(b, 1000, 1000, f));
	P(right(b, 1000000, 1 << 20));
	P(fgetc(f) == (unsigned char)(((1 << 20) + 1000000) * 2654435761u >> 13));
	P(fread(b, 1 << 20, 4, f)); /* one whole item, and a part of the next one */
	P(right(b, n - (1 << 20) - 1000001, (1 << 20) + 1000001));
	P(feof(f) != 0);
	P(ftell(f));
	P(fclose(f));
	f = fopen(in("gulps"), "w");
	P(fread(b, 1, n, f));
	P(ferror(f) != 0);
	P(fclose(f));
	free(b);
}

static ssize_t gives(void *cookie, char *buf, size_t n)
{
	memset(buf, *(char *)cookie, n);
	return (ssize_t)n;
}

static int closes(void *cookie)
{
	return printf("%c closed\n", *(char *)cookie) < 0;
}

/* foreign is a fopencookie stream of the program. The library distinguishes it from its own streams by the missing descriptor. */
static bool foreign(void)
{
	static char x = 'x', read[1 << 20];
	FILE *f = fopencookie(&x, "r", (cookie_io_functions_t){.read = gives, .close = closes});
	bool none = f->_fileno < 0;

	P((long)fread(read, 1, sizeof read, f));
	P(read[0] == x && read[sizeof read - 1] == x);
	P(fclose(f));
	return none;
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	dir = argv[1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!foreign())
		return 3; /* this version of glibc gives such streams a descriptor */
	text();
	modes();
	large();
	gulps();
	reopened();
	redirected();
	fprintf(fopen(in("left-open"), "w"), "flushed at exit\n");
	fflush(stdout);
	printf("now to the file\n");
	if (freopen(in("stdout"), "w", stdout) == NULL)
		return 1;
	printf("in the file\n");
	return 0;
}
