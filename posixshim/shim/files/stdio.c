/* FILE streams: those that are ours are fopencookie streams of libc, which call the functions of this file.
 *
 * fileno() of such a stream returns the descriptor of the file, so that fstat and ftruncate work. The descriptor may be one that is
 * not ours: freopen can turn the stream into one of any file.
 *
 * libc locks the stream around these functions. nv_stdin_cookie and nv_stdin_libc are changed by the thread that changes
 * descriptor 0, without a lock: as in libc, a program must not do that while another thread reads standard input. */
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

/* libc reads one buffer at a time, so streams for reading get a large buffer. It writes large data directly, past the buffer. */
#define READ_BUFFER (256 << 10)

/* The cookie of a stream. */
struct cookie {
	int fd;
	FILE *stream;
	char buffer[];
};

/* Standard input. libc's stream reads its descriptor inside libc, which cannot be intercepted. So while descriptor 0 is ours, the
 * variable stdin is nv_stdin_cookie, a stream of ours. libc's own stream is then nv_stdin_libc. Code that has kept the address of
 * that, such as std::cin, reads from nv_stdin_cookie too (nv_input). Standard output needs no such stream: see
 * nv_begin_relay. */
FILE *nv_stdin_cookie, *nv_stdin_libc;

/* is_ours says whether a stream is ours: libc gives streams of fopencookie no descriptor, and wrap does. */
static bool is_ours(const FILE *stream)
{
	return nv_cookie(stream) && stream->_fileno >= 0;
}

/* nv_wide_allowed says whether libc's functions for wide characters can be called with a stream. They crash on streams of
 * fopencookie. */
bool nv_wide_allowed(FILE *stream)
{
	return !nv_cookie(stream) || nv_unsupported("a function for wide characters") == 0;
}

static ssize_t read_cookie(void *cookie, char *buf, size_t n)
{
	int fd = ((struct cookie *)cookie)->fd;
	nv_handle h = nv_handle_of(fd);

	return h != 0 ? rt_read(h, buf, n) : REAL(read)(fd, buf, n);
}

/* write_cookie writes until all n bytes are written or a write fails: libc takes a smaller result for an error, and does not
 * call again. errno is then that of the last write. */
static ssize_t write_cookie(void *cookie, const char *buf, size_t n)
{
	int fd = ((struct cookie *)cookie)->fd;
	nv_handle h = nv_handle_of(fd);
	size_t done = 0;

	while (done < n) {
		ssize_t w = h != 0 ? rt_write(h, (char *)buf + done, n - done) : REAL(write)(fd, buf + done, n - done);

		if (w <= 0)
			break;
		done += (size_t)w;
	}
	return (ssize_t)done;
}

static off64_t move(int fd, off64_t off, int whence)
{
	nv_handle h = nv_handle_of(fd);

	return h != 0 ? rt_seek(h, off, whence) : REAL(lseek)(fd, off, whence);
}

static int seek_cookie(void *cookie, off64_t *off, int whence)
{
	off64_t now = move(((struct cookie *)cookie)->fd, *off, whence);

	if (now < 0)
		return -1;
	*off = now;
	return 0;
}

static int close_descriptor(int fd)
{
	return nv_handle_of(fd) != 0 ? nv_close(fd) : REAL(close)(fd);
}

static int close_cookie(void *cookie)
{
	struct cookie *c = cookie;
	int r = close_descriptor(c->fd);

	if (nv_stdin_cookie == c->stream) {
		*nv_standard_stream(STDIN_FILENO) = nv_stdin_libc;
		nv_stdin_cookie = nv_stdin_libc = NULL;
	}
	free(c);
	return r;
}

/* open_flags turns fopen's mode into open's flags, or -1 with EINVAL. */
static int open_flags(const char *mode)
{
	int flags;

	switch (*mode) {
	case 'r':
		flags = O_RDONLY;
		break;
	case 'w':
		flags = O_WRONLY | O_CREAT | O_TRUNC;
		break;
	case 'a':
		flags = O_WRONLY | O_CREAT | O_APPEND;
		break;
	default:
		return nv_error(EINVAL);
	}
	while (*++mode != '\0' && *mode != ',') {
		if (*mode == '+')
			flags = (flags & ~O_ACCMODE) | O_RDWR;
		else if (*mode == 'x')
			flags |= O_EXCL;
		else if (*mode == 'e')
			flags |= O_CLOEXEC;
	}
	return flags;
}

/* starts_at_end says whether the position of a new stream is the end of the file. A stream that appends and reads starts at
 * the beginning. */
static bool starts_at_end(int flags)
{
	return (flags & (O_APPEND | O_ACCMODE)) == (O_APPEND | O_WRONLY);
}

/* wrap makes a stream around a descriptor. It fails without closing it. */
static FILE *wrap(int fd, const char *mode, int flags)
{
	size_t buffer = (flags & O_ACCMODE) == O_RDONLY ? READ_BUFFER : 0;
	struct cookie *c = malloc(sizeof *c + buffer);

	if (c == NULL)
		return NULL;
	c->fd = fd;
	c->stream = fopencookie(c, mode, (cookie_io_functions_t){
						 .read = read_cookie,
						 .write = write_cookie,
						 .seek = seek_cookie,
						 .close = close_cookie,
					 });
	if (c->stream == NULL) {
		free(c);
		return NULL;
	}
	c->stream->_fileno = fd;
	if (buffer > 0)
		setvbuf(c->stream, c->buffer, _IOFBF, buffer);
	return c->stream;
}

FILE *nv_fopen(struct nv_path_at *at, const char *mode)
{
	int flags = open_flags(mode);
	int fd = flags < 0 ? -1 : nv_open(at, flags, 0666);

	if (fd < 0)
		return NULL;
	if (starts_at_end(flags))
		rt_seek(nv_handle_of(fd), 0, SEEK_END);
	FILE *stream = wrap(fd, mode, flags);

	if (stream == NULL) {
		nv_close(fd);
		errno = ENOMEM;
	}
	return stream;
}

/* permits says whether a descriptor opened with have can do what want asks. */
static bool permits(int have, int want)
{
	return (have & O_ACCMODE) == O_RDWR || (have & O_ACCMODE) == (want & O_ACCMODE);
}

FILE *nv_fdopen(int fd, nv_handle h, const char *mode)
{
	int want = open_flags(mode);
	int have = (int)rt_getfl(h);

	if (want < 0 || have < 0)
		return NULL;
	if (!permits(have, want)) {
		errno = EINVAL;
		return NULL;
	}
	if ((want & O_APPEND) && !(have & O_APPEND) && rt_setfl(h, have | O_APPEND) != 0)
		return NULL;
	return wrap(fd, mode, want);
}

int nv_vdprintf(int fd, const char *format, va_list ap)
{
	char *text;

	if (nv_handle_of(fd) == 0)
		return REAL(vdprintf)(fd, format, ap);
	int n = vasprintf(&text, format, ap);

	if (n < 0)
		return -1;
	if (write_cookie(&(struct cookie){.fd = fd}, text, (size_t)n) < n)
		n = -1;
	int saved = errno;

	free(text);
	errno = saved;
	return n;
}

/* Bits of _flags in FILE (glibc). More of them are below. */
#define UNBUFFERED 0x0002
#define EOF_SEEN 0x0010
#define ERROR_SEEN 0x0020
#define IN_BACKUP 0x0100 /* ungetc has allocated a buffer of its own */
#define LINE_BUFFERED 0x0200
#define WRITING 0x0800

/* only_reads says whether the next bytes of a stream are those in its buffer and then those of its descriptor: no unget buffer, no
 * written data, no end or error has to be taken into account. */
static bool only_reads(const FILE *stream)
{
	return (stream->_flags & (UNBUFFERED | EOF_SEEN | ERROR_SEEN | IN_BACKUP | LINE_BUFFERED | WRITING)) == 0 &&
	       stream->_IO_save_base == NULL;
}

/* read_directly reads from a stream whose buffer is empty into the caller's memory, as libc does for its own streams. */
static size_t read_directly(FILE *stream, nv_handle h, char *buf, size_t n)
{
	size_t done = 0;

	stream->_IO_read_base = stream->_IO_read_ptr = stream->_IO_read_end = stream->_IO_buf_base;
	stream->_IO_write_base = stream->_IO_write_ptr = stream->_IO_write_end = stream->_IO_buf_base;
	while (done < n) {
		int64_t r = rt_read(h, buf + done, n - done);

		if (r <= 0) {
			stream->_flags |= r == 0 ? EOF_SEEN : ERROR_SEEN;
			break;
		}
		done += (size_t)r;
	}
	if (stream->_offset >= 0)
		stream->_offset += (off64_t)done;
	return done;
}

/* nv_fread is fread for streams of fopencookie. libc copies all of their data through the buffer. Here reads that are larger than
 * the buffer go directly to the caller's memory. */
size_t nv_fread(void *buf, size_t size, size_t n, FILE *stream)
{
	size_t total, done = 0;

	if (__builtin_mul_overflow(size, n, &total) || total < (size_t)(stream->_IO_buf_end - stream->_IO_buf_base) ||
	    !is_ours(stream))
		return REAL(fread)(buf, size, n, stream);
	flockfile(stream);
	nv_handle h = nv_handle_of(stream->_fileno);
	size_t buffered = (size_t)(stream->_IO_read_end - stream->_IO_read_ptr);
	size_t capacity = (size_t)(stream->_IO_buf_end - stream->_IO_buf_base);

	if (h != 0 && capacity > 0 && only_reads(stream) && total >= buffered + capacity) {
		if (buffered > 0)
			done = REAL(fread_unlocked)(buf, 1, buffered, stream);
		done += read_directly(stream, h, (char *)buf + done, total - done);
	} else {
		done = REAL(fread_unlocked)(buf, 1, total, stream);
	}
	funlockfile(stream);
	return size == 0 ? 0 : done / size;
}

/* nv_fread_chk is fread of fortified programs. have is the size of buf. */
size_t nv_fread_chk(void *buf, size_t have, size_t size, size_t n, FILE *stream)
{
	size_t total;

	nv_check(!__builtin_mul_overflow(size, n, &total) && total <= have);
	return nv_fread(buf, size, n, stream);
}

/* The bits of _flags that are the mode of opening. */
#define NO_READS 0x0004
#define NO_WRITES 0x0008
#define APPENDING 0x1000

/* reset_stream puts a stream into the state after opening with flags. */
static void reset_stream(FILE *stream, int flags)
{
	__fpurge(stream);
	REAL(clearerr)(nv_input(stream));
	stream->_offset = -1;
	stream->_flags &= ~(NO_READS | NO_WRITES | APPENDING);
	if ((flags & O_ACCMODE) == O_RDONLY)
		stream->_flags |= NO_WRITES;
	if ((flags & O_ACCMODE) == O_WRONLY)
		stream->_flags |= NO_READS;
	if (flags & O_APPEND)
		stream->_flags |= APPENDING;
}

/* nv_update_stdin is called when descriptor 0 has become ours, or is not ours any more. */
void nv_update_stdin(void)
{
	FILE **variable = nv_standard_stream(STDIN_FILENO);
	int saved = errno;

	if (nv_handle_of(STDIN_FILENO) == 0) {
		if (nv_stdin_cookie != NULL && *variable == nv_stdin_cookie)
			*variable = nv_stdin_libc;
		nv_stdin_libc = NULL;
	} else if (*variable != nv_stdin_cookie || nv_stdin_cookie == NULL) {
		if (nv_stdin_cookie == NULL)
			nv_stdin_cookie = wrap(STDIN_FILENO, "r", O_RDONLY);
		if (nv_stdin_cookie != NULL) {
			nv_stdin_libc = *variable;
			*variable = nv_stdin_cookie;
		}
	}
	errno = saved;
}

/* is_standard says whether a stream is libc's stdin, stdout or stderr, with its original descriptor. */
static bool is_standard(const FILE *stream)
{
	for (int fd = 0; fd <= 2; fd++)
		if (stream == *nv_standard_stream(fd))
			return stream->_fileno == fd;
	return false;
}

/* nv_fclose is fclose. libc closes the descriptor of its own standard streams inside libc, which is not intercepted. So those
 * whose descriptor is ours are closed by nv_close_stream. */
int nv_fclose(FILE *stream)
{
	int fd = stream->_fileno;

	if (nv_cookie(stream) || (unsigned)fd > STDERR_FILENO || nv_handle_of(fd) <= 0)
		return REAL(fclose)(stream);
	int result = nv_fflush(stream), saved = errno;

	if (nv_close_stream(stream, fd) != 0)
		return EOF;
	errno = result != 0 ? saved : errno;
	return result;
}

/* reopened opens the file for freopen: the file name or, if name is NULL, the file of the descriptor before in another
 * mode. */
static int reopened(int before, const char *name, int flags)
{
	struct nv_path_at at = {.dir = nv_handle_of(before) | NV_ITSELF, .path = "."};
	int fd;

	if (name != NULL && !nv_route(AT_FDCWD, name, &at))
		return REAL(open)(name, flags, 0666);
	do
		fd = nv_open(&at, flags, 0666);
	while (nv_reroute(&at));
	if (!at.outside)
		return fd;
	char outside[strlen(at.path) + 1];

	nv_go_outside(&at, outside);
	return REAL(open)(at.path, flags, 0666);
}

/* replace_descriptor moves fd to the number of the stream's descriptor, and resets the stream. */
static bool replace_descriptor(FILE *stream, int fd, int flags)
{
	int before = stream->_fileno;

	reset_stream(stream, flags);
	if (fd == before)
		return true;
	int result = nv_dup_to(fd, before, flags & O_CLOEXEC);

	close_descriptor(fd);
	return result >= 0;
}

/* nv_freopen returns the same stream, with one exception: a stream of libc that is not a standard one, and is given a file of
 * ours, is closed, and a new stream is returned. */
FILE *nv_freopen(const char *name, const char *mode, FILE *stream)
{
	struct nv_path_at at;
	int before = stream->_fileno;
	bool standard = is_standard(stream), ours = is_ours(stream);

	if (!ours && !nv_route(AT_FDCWD, name, &at) && !(standard && nv_handle_of(before) > 0))
		return REAL(freopen)(name, mode, stream);
	nv_fflush(stream);
	int flags = open_flags(mode), fd = flags < 0 ? -1 : reopened(before, name, flags), saved = errno;

	if (fd >= 0 && starts_at_end(flags))
		move(fd, 0, SEEK_END);
	if (fd >= 0 && (ours || standard))
		return !replace_descriptor(stream, fd, flags) ? NULL : standard ? *nv_standard_stream(before) : stream;
	nv_fclose(stream);
	errno = saved;
	return fd < 0 ? NULL : wrap(fd, mode, flags);
}
