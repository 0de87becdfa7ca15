/* Makes large transfers in argv[1] while signals arrive. Their handler is installed with and without SA_RESTART. As on local file
 * systems, a call transfers everything; it must not fail with EINTR or return a short count. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SIZE = 24 << 20 };

static volatile sig_atomic_t signals;
static char *out, *in;
static long bad;

static void count(int signum)
{
	(void)signum;
	signals++;
}

static void expect(const char *what, long got, long want)
{
	if (got == want)
		return;
	bad++;
	printf("%s: %ld instead of %ld: %m\n", what, got, want);
}

static void same(const char *what)
{
	if (memcmp(in, out, SIZE) != 0) {
		bad++;
		printf("%s: other bytes\n", what);
	}
	memset(in, 0, SIZE);
}

static void transfer(const char *path)
{
	struct iovec iov[3] = {{out, SIZE / 2}, {out + SIZE / 2, 5}, {out + SIZE / 2 + 5, SIZE / 2 - 5}};
	struct iovec back[2] = {{in, 7}, {in + 7, SIZE - 7}};
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	expect("open", fd >= 0, 1);
	expect("write", write(fd, out, SIZE), SIZE);
	expect("fsync", fsync(fd), 0);
	expect("lseek", lseek(fd, 0, SEEK_SET), 0);
	expect("read", read(fd, in, SIZE), SIZE);
	same("read");
	expect("pwritev", pwritev(fd, iov, 3, 0), SIZE);
	expect("preadv", preadv(fd, back, 2, 0), SIZE);
	same("preadv");
	expect("ftruncate", ftruncate(fd, 0), 0);
	expect("close", close(fd), 0);
	FILE *f = fopen(path, "w");

	expect("fwrite", (long)fwrite(out, 1, SIZE, f), SIZE);
	expect("fclose", fclose(f), 0);
	f = fopen(path, "r");
	expect("fread", (long)fread(in, 1, SIZE, f), SIZE);
	fclose(f);
	same("fread");
}

int main(int argc, char **argv)
{
	struct itimerval often = {{0, 300}, {0, 300}}, off = {{0, 0}, {0, 0}};
	char path[4096];

	if (argc != 2)
		return 2;
	snprintf(path, sizeof path, "%s/large", argv[1]);
	out = malloc(SIZE);
	in = malloc(SIZE);
	for (long i = 0; i < SIZE; i++)
		out[i] = (char)(i * 7 ^ i >> 9);
	close(open(path, O_RDWR | O_CREAT, 0600)); /* loads the runtime, which is not tested here */
	for (int flags = 0; flags < 2; flags++) {
		struct sigaction act = {.sa_handler = count, .sa_flags = flags ? SA_RESTART : 0};

		signals = 0;
		sigaction(SIGALRM, &act, NULL);
		setitimer(ITIMER_REAL, &often, NULL);
		transfer(path);
		setitimer(ITIMER_REAL, &off, NULL);
		printf("%s: %ld bad, %s\n", flags ? "SA_RESTART" : "without", bad, signals > 20 ? "many signals" : "few signals");
	}
	return 0;
}
