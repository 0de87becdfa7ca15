/* Makes the calls in messages.hex on descriptor 0, which is the socket of another process's file. Prints the results. With the
 * argument "open", only opens a file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define P(expr) print(#expr, (long)(expr))

static void print(const char *what, long value)
{
	printf("%s = %ld%s%s\n", what, value, value < 0 ? " " : "", value < 0 ? strerrorname_np(errno) : "");
}

static int descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Opens a file, and prints the number of additional descriptors. */
static int opens(void)
{
	int before = descriptors();

	P(open("/nvmecr/a", O_RDONLY));
	P(descriptors() - before);
	return fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "open") == 0)
		_exit(opens());
	char buf[6] = "-----";
	struct statvfs st;

	umask(027);
	P(write(0, "content", 7));
	P(pread(0, buf, 5, 0x0102030405060708));
	P(strcmp(buf, "ent--"));
	P(open("/nvmecr/a", O_RDWR | O_CREAT, 0666) >= 0);
	P(renameat2(AT_FDCWD, "/nvmecr/from", AT_FDCWD, "/nvmecr/to", RENAME_NOREPLACE));
	P(access("/nvmecr/out", F_OK));
	P(fstatvfs(0, &st));
	P(st.f_blocks);
	P(st.f_namemax);
	P(fchmod(0, 0600));
	P(fsync(0));
	fflush(stdout);
	_exit(0);
}
