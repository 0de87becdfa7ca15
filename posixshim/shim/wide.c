/* Wide characters on streams of ours. The streams that libc makes for
 * fopencookie have none (some of its functions crash on them), so here they
 * are converted, in the encoding of the locale, and go through the functions
 * for bytes. The ccs= of fopen's mode is not looked at: it is the locale's. */
#include <stdlib.h>

#include "nv.h"

/* What libc marks a stream with that had an error. */
#define ERROR_SEEN 0x0020

/* wide returns the state of a stream of ours, NULL for any other. */
static struct nv_wide *wide(FILE *stream)
{
	return nv_cookie(stream) ? nv_wide_of(stream) : NULL;
}

/* orientation is what fwide says: libc keeps none for such a stream, but one
 * that has just been read or written as bytes has some in its buffer. */
static int orientation(FILE *stream, struct nv_wide *w, int wanted)
{
	bool used = stream->_IO_read_end != stream->_IO_read_base || stream->_IO_write_ptr != stream->_IO_write_base;

	if (w->orientation == 0 && used)
		w->orientation = -1;
	if (w->orientation == 0)
		w->orientation = (wanted > 0) - (wanted < 0);
	return w->orientation;
}

/* orient makes the stream one of wide characters if it is not decided yet. */
static bool orient(FILE *stream, struct nv_wide *w)
{
	return orientation(stream, w, 1) > 0;
}

int nv_fwide(FILE *stream, int mode)
{
	struct nv_wide *w = wide(stream);

	if (w == NULL)
		return REAL(fwide)(stream, mode);
	return orientation(stream, w, mode);
}

static wint_t bad_sequence(FILE *stream)
{
	stream->_flags |= ERROR_SEEN;
	errno = EILSEQ;
	return WEOF;
}

wint_t nv_fgetwc(FILE *stream)
{
	struct nv_wide *w = wide(stream);

	if (w == NULL)
		return REAL(fgetwc)(stream);
	if (!orient(stream, w))
		return WEOF;
	for (;;) {
		int c = REAL(fgetc)(stream);

		if (c == EOF)
			return mbsinit(&w->in) || REAL(ferror)(stream) ? WEOF : bad_sequence(stream);
		char byte = (char)c;
		wchar_t wc;
		size_t n = mbrtowc(&wc, &byte, 1, &w->in);

		if (n == (size_t)-1)
			return bad_sequence(stream);
		if (n != (size_t)-2)
			return n == 0 ? L'\0' : (wint_t)wc;
	}
}

wint_t nv_fputwc(wchar_t wc, FILE *stream)
{
	struct nv_wide *w = wide(stream);
	char bytes[MB_LEN_MAX];

	if (w == NULL)
		return REAL(fputwc)(wc, stream);
	if (!orient(stream, w))
		return WEOF;
	size_t n = wcrtomb(bytes, wc, &w->out);

	if (n == (size_t)-1)
		return bad_sequence(stream);
	return fwrite(bytes, 1, n, stream) == n ? (wint_t)wc : WEOF;
}

wchar_t *nv_fgetws(wchar_t *line, int n, FILE *stream)
{
	if (wide(stream) == NULL)
		return REAL(fgetws)(line, n, stream);
	int got = 0;

	if (n <= 0)
		return NULL;
	while (got < n - 1) {
		wint_t wc = nv_fgetwc(stream);

		if (wc == WEOF && (got == 0 || REAL(ferror)(stream)))
			return NULL;
		if (wc == WEOF)
			break;
		line[got++] = (wchar_t)wc;
		if (wc == L'\n')
			break;
	}
	line[got] = L'\0';
	return line;
}

int nv_fputws(const wchar_t *text, FILE *stream)
{
	if (wide(stream) == NULL)
		return REAL(fputws)(text, stream);
	if (!orient(stream, wide(stream)))
		return -1;
	int result = 1;

	flockfile(stream);
	for (; result > 0 && *text != L'\0'; text++)
		if (nv_fputwc(*text, stream) == WEOF)
			result = -1;
	funlockfile(stream);
	return result;
}

wint_t nv_ungetwc(wint_t wc, FILE *stream)
{
	struct nv_wide *w = wide(stream);
	char bytes[MB_LEN_MAX];
	mbstate_t state = {0};

	if (w == NULL)
		return REAL(ungetwc)(wc, stream);
	if (wc == WEOF || !orient(stream, w))
		return WEOF;
	size_t n = wcrtomb(bytes, (wchar_t)wc, &state);

	if (n == (size_t)-1)
		return bad_sequence(stream);
	while (n > 0)
		if (REAL(ungetc)((unsigned char)bytes[--n], stream) == EOF)
			return WEOF;
	return wc;
}

int nv_vfwprintf(FILE *stream, const wchar_t *format, va_list ap)
{
	wchar_t *text = NULL;
	size_t n;

	if (wide(stream) == NULL)
		return REAL(vfwprintf)(stream, format, ap);
	FILE *memory = open_wmemstream(&text, &n);

	if (memory == NULL)
		return -1;
	int result = REAL(vfwprintf)(memory, format, ap);

	if (REAL(fclose)(memory) != 0 || (result >= 0 && nv_fputws(text, stream) < 0))
		result = -1;
	int saved = errno;

	free(text);
	errno = saved;
	return result;
}

/* narrow returns a format in bytes, to be freed. */
static char *narrow(const wchar_t *format)
{
	mbstate_t state = {0};
	const wchar_t *from = format;
	size_t n = wcsrtombs(NULL, &from, 0, &state);
	char *bytes = n == (size_t)-1 ? NULL : malloc(n + 1);

	if (bytes != NULL)
		wcsrtombs(bytes, &from, n + 1, &state);
	return bytes;
}

/* The conversions mean the same in vfscanf; but widths count bytes there. */
int nv_vfwscanf(FILE *stream, const wchar_t *format, va_list ap, bool c99)
{
	struct nv_wide *w = wide(stream);

	if (w == NULL)
		return c99 ? REAL(__isoc99_vfwscanf)(stream, format, ap) : REAL(vfwscanf)(stream, format, ap);
	char *bytes = orient(stream, w) ? narrow(format) : NULL;
	int n = bytes == NULL ? EOF : REAL(__isoc99_vfscanf)(stream, bytes, ap);

	free(bytes);
	return n;
}
