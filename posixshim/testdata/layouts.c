/* Checks the layouts of glibc's structures that the preload library depends on and that no public header defines
 * (docs/dev/design.md). Prints a line for each difference. The argument is a file of 8 KiB. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define T(expr) check(expr, #expr, __LINE__)

static void check(bool is, const char *what, int line)
{
	if (!is)
		printf("line %d: %s\n", line, what);
}

/* The bits of _flags, as defined in files/stdio.c. */
enum { UNBUFFERED = 0x0002, NO_READS = 0x0004, NO_WRITES = 0x0008, EOF_SEEN = 0x0010, ERROR_SEEN = 0x0020, IN_BACKUP = 0x0100,
       LINE_BUFFERED = 0x0200, WRITING = 0x0800, APPENDING = 0x1000 };
enum { MODES = NO_READS | NO_WRITES | APPENDING, STATE = UNBUFFERED | EOF_SEEN | ERROR_SEEN | IN_BACKUP | LINE_BUFFERED | WRITING };

static ssize_t nothing(void *cookie, char *buf, size_t n)
{
	(void)cookie;
	(void)buf;
	return (ssize_t)n - (ssize_t)n;
}

static int modes(const char *name, const char *mode)
{
	FILE *f = fopen(name, mode);
	int flags = f->_flags & MODES;

	fclose(f);
	return flags;
}

/* Checks a stream that reads: its buffer, and the offset of the descriptor. */
static void reading(const char *name)
{
	static char buf[4096], last[4096];
	FILE *f = fopen(name, "r");

	T(f->_fileno == fileno(f) && f->_wide_data != (struct _IO_wide_data *)-1L);
	T(setvbuf(f, buf, _IOFBF, sizeof buf) == 0 && f->_IO_buf_base == buf && f->_IO_buf_end == buf + sizeof buf);
	T((f->_flags & STATE) == 0);
	int c = getc(f);

	T(f->_IO_read_base == buf && f->_IO_read_ptr == buf + 1 && f->_IO_read_end == buf + sizeof buf);
	T(f->_IO_save_base == NULL && ungetc(c + 1, f) == c + 1 && (f->_flags & IN_BACKUP) && f->_IO_save_base != NULL);
	T(getc(f) == c + 1 && fseeko(f, 4096, SEEK_SET) == 0);
	T(fread(last, 1, sizeof last, f) == sizeof last && f->_offset == lseek(fileno(f), 0, SEEK_CUR));
	T(getc(f) == EOF && (f->_flags & EOF_SEEN));
	clearerr(f);
	T(putc('x', f) == EOF && (f->_flags & ERROR_SEEN));
	T(setvbuf(f, NULL, _IONBF, 0) == 0 && (f->_flags & UNBUFFERED));
	fclose(f);
}

static void writing(const char *name)
{
	static char buf[4096];
	FILE *f = fopen(name, "r+");

	T(setvbuf(f, buf, _IOLBF, sizeof buf) == 0 && (f->_flags & LINE_BUFFERED));
	T(putc('x', f) == 'x' && (f->_flags & WRITING) && f->_IO_write_base == buf && f->_IO_write_ptr == buf + 1);
	fclose(f);
}

int main(int argc, char **argv)
{
	const char *name = argv[argc - 1];
	int cookie;
	FILE *made = fopencookie(&cookie, "r", (cookie_io_functions_t){.read = nothing});

	T(made->_wide_data == (struct _IO_wide_data *)-1L && made->_fileno < 0 && made->_offset == -1);
	reading(name);
	writing(name);
	T(modes(name, "r") == NO_WRITES && modes(name, "r+") == 0);
	T(modes(name, "a") == (NO_READS | APPENDING) && modes(name, "a+") == APPENDING && modes(name, "w") == NO_READS);

	DIR *dir = opendir("/");
	int head[2];

	memcpy(head, dir, sizeof head);
	T(head[0] == dirfd(dir) && head[1] == 0);
	return 0;
}
