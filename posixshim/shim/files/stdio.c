/* FILE streams: fopencookie streams of libc that call back into the shim.
 *
 * fileno() of such a stream is the descriptor of the file, so fstat and
 * ftruncate on it work; descriptors that are not ours work as well, which is
 * what a stream can become through freopen. */
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

/* libc reads a buffer at a time, and writes what does not fit the buffer
 * directly: so streams that only read get a large one. */
#define READ_BUFFER (256 << 10)

/* What is behind a stream of ours. */
struct cookie {
	int fd;
	FILE *stream;
	char buffer[];
};

/* Standard input. The C library's own reads its descriptor inside the library,
 * which cannot be intercepted, so while descriptor 0 is
 * ours the variable stdin is nv_input_ours, and libc's is nv_input_theirs, which who has
 * kept its address, as std::cin does, may go on using (nv_input). What is
 * written inside the library reaches the file (nv_arm_relay). */
FILE *nv_input_ours, *nv_input_theirs;

/* is_ours says that a stream is one of ours: libc gives streams of fopencookie no descriptor. */
static bool is_ours(const FILE *stream)
{
	return nv_cookie(stream) && stream->_fileno >= 0;
}

/* nv_wide says that a stream has wide characters. The C library's functions for them crash on
 * streams of fopencookie. */
bool nv_wide(FILE *stream)
{
	return !nv_cookie(stream) || nv_refuse("a function for wide characters") == 0;
}

static ssize_t read_cookie(void *cookie, char *buf, size_t n)
{
	int fd = ((struct cookie *)cookie)->fd;
	nv_handle h = nv_ours(fd);

	return h != 0 ? rt_read(h, buf, n) : REAL(read)(fd, buf, n);
}

/* write_cookie returns less than n for an error, as fopencookie wants it: libc
 * does not call again for the rest, so errno has to say here why it is less. */
static ssize_t write_cookie(void *cookie, const char *buf, size_t n)
{
	int fd = ((struct cookie *)cookie)->fd;
	nv_handle h = nv_ours(fd);
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
	nv_handle h = nv_ours(fd);

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

static int shut(int fd)
{
	return nv_ours(fd) != 0 ? nv_close(fd) : REAL(close)(fd);
}

static int close_cookie(void *cookie)
{
	struct cookie *c = cookie;
	int r = shut(c->fd);

	if (nv_input_ours == c->stream) {
		*nv_standard_stream(STDIN_FILENO) = nv_input_theirs;
		nv_input_ours = nv_input_theirs = NULL;
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

/* starts_at_end says where ftell of a new stream is: one that also reads does
 * that from the start. */
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
		rt_seek(nv_ours(fd), 0, SEEK_END);
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

	if (nv_ours(fd) == 0)
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

/* Bits of FILE's _flags, beside those below. */
#define UNBUFFERED 0x0002
#define EOF_SEEN 0x0010
#define ERROR_SEEN 0x0020
#define IN_BACKUP 0x0100 /* ungetc has allocated a buffer of its own */
#define LINE_BUFFERED 0x0200
#define WRITING 0x0800

/* reads_on says that all there is to know of what comes next in a stream is in
 * its buffer and its descriptor. */
static bool reads_on(const FILE *stream)
{
	return (stream->_flags & (UNBUFFERED | EOF_SEEN | ERROR_SEEN | IN_BACKUP | LINE_BUFFERED | WRITING)) == 0 &&
	       stream->_IO_save_base == NULL;
}

/* read_directly reads what is to come of a stream into the caller's memory,
 * past its buffer, which is empty; as libc does for files of its own. */
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

/* nv_fread is fread for streams that fopencookie has made: libc fills them from
 * the buffer alone, a buffer at a time. What is larger than that, and not in it
 * already, is read where it belongs. */
size_t nv_fread(void *buf, size_t size, size_t n, FILE *stream)
{
	size_t total, done = 0;

	if (__builtin_mul_overflow(size, n, &total) || total < (size_t)(stream->_IO_buf_end - stream->_IO_buf_base) ||
	    !is_ours(stream))
		return REAL(fread)(buf, size, n, stream);
	flockfile(stream);
	nv_handle h = nv_ours(stream->_fileno);
	size_t buffered = (size_t)(stream->_IO_read_end - stream->_IO_read_ptr);
	size_t capacity = (size_t)(stream->_IO_buf_end - stream->_IO_buf_base);

	if (h != 0 && capacity > 0 && reads_on(stream) && total >= buffered + capacity) {
		if (buffered > 0)
			done = REAL(fread_unlocked)(buf, 1, buffered, stream);
		done += read_directly(stream, h, (char *)buf + done, total - done);
	} else {
		done = REAL(fread_unlocked)(buf, 1, total, stream);
	}
	funlockfile(stream);
	return size == 0 ? 0 : done / size;
}

/* nv_fread_chk is what fortified programs call; their buffer has have bytes. */
size_t nv_fread_chk(void *buf, size_t have, size_t size, size_t n, FILE *stream)
{
	size_t total;

	nv_check(!__builtin_mul_overflow(size, n, &total) && total <= have);
	return nv_fread(buf, size, n, stream);
}

/* The bits of FILE's _flags that say what it was opened for. */
#define NO_READS 0x0004
#define NO_WRITES 0x0008
#define APPENDING 0x1000

/* begin_anew makes a stream what it is after opening with flags. */
static void begin_anew(FILE *stream, int flags)
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

/* nv_standard_input is told that descriptor 0 has become something else. */
void nv_standard_input(void)
{
	FILE **variable = nv_standard_stream(STDIN_FILENO);
	int saved = errno;

	if (nv_ours(STDIN_FILENO) == 0) {
		if (nv_input_ours != NULL && *variable == nv_input_ours)
			*variable = nv_input_theirs;
		nv_input_theirs = NULL;
	} else if (*variable != nv_input_ours || nv_input_ours == NULL) {
		if (nv_input_ours == NULL)
			nv_input_ours = wrap(STDIN_FILENO, "r", O_RDONLY);
		if (nv_input_ours != NULL) {
			nv_input_theirs = *variable;
			*variable = nv_input_ours;
		}
	}
	errno = saved;
}

/* standard says that a stream is one of the C library's three. */
static bool standard(const FILE *stream)
{
	for (int fd = 0; fd <= 2; fd++)
		if (stream == *nv_standard_stream(fd))
			return stream->_fileno == fd;
	return false;
}

/* nv_fclose sees to it that the C library, which closes the descriptors of its own
 * streams inside the library, closes none of ours unseen. */
int nv_fclose(FILE *stream)
{
	int fd = stream->_fileno;

	if (nv_cookie(stream) || (unsigned)fd > STDERR_FILENO || nv_ours(fd) <= 0)
		return REAL(fclose)(stream);
	int result = nv_fflush(stream), saved = errno;

	if (nv_close_stream(stream, fd) != 0)
		return EOF;
	errno = result != 0 ? saved : errno;
	return result;
}

/* reopened opens what a stream is to become: another file, or, without a name, that of its
 * descriptor in another mode. */
static int reopened(int before, const char *name, int flags)
{
	struct nv_path_at at = {.dir = nv_ours(before) | NV_ITSELF, .path = "."};
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

/* put puts fd in the place of a stream's descriptor, and makes the stream what it is after opening with flags. */
static bool put(FILE *stream, int fd, int flags)
{
	int before = stream->_fileno;

	begin_anew(stream, flags);
	if (fd == before)
		return true;
	int result = nv_dup_to(fd, before, flags & O_CLOEXEC);

	shut(fd);
	return result >= 0;
}

/* nv_freopen leaves the stream what it is, unless it is one of the C library's, other than the
 * standard streams, that becomes one of ours: then it is another one. */
FILE *nv_freopen(const char *name, const char *mode, FILE *stream)
{
	struct nv_path_at at;
	int before = stream->_fileno;
	bool libcs = standard(stream), ours = is_ours(stream);

	if (!ours && !nv_route(AT_FDCWD, name, &at) && !(libcs && nv_ours(before) > 0))
		return REAL(freopen)(name, mode, stream);
	nv_fflush(stream);
	int flags = open_flags(mode), fd = flags < 0 ? -1 : reopened(before, name, flags), saved = errno;

	if (fd >= 0 && starts_at_end(flags))
		move(fd, 0, SEEK_END);
	if (fd >= 0 && (ours || libcs))
		return !put(stream, fd, flags) ? NULL : libcs ? *nv_standard_stream(before) : stream;
	nv_fclose(stream);
	errno = saved;
	return fd < 0 ? NULL : wrap(fd, mode, flags);
}
