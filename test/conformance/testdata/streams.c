/* Standard I/O. */
#include "run.h"

#include <locale.h>
#include <stdio_ext.h>
#include <wchar.h>

VERB(fopen) { stream(BY(fopen, fopen64, fopen)(P(0), R(1))); }
VERB(fdopen) { stream(fdopen(F(0), R(1))); }
VERB(freopen) { stream(BY(freopen, freopen64, freopen)(P(0), R(1), T(2))); forget(2); }
VERB(fclose) { number(fclose(T(0))); forget(0); }
VERB(fread) { size_t n = fread(buffer, 1, (size_t)N(1), T(0)); bytes((long long)n, buffer); }
/* An error of fwrite may wait for fflush: both tell whether errno was set. */
VERB(fwrite) { size_t n = fwrite(S(1), 1, L(1), T(0)); say("%zu", n); if (n < L(1)) say(" %s", error_name()); }
VERB(fputs) { number(fputs(S(1), T(0)) >= 0 ? 0 : -1); }
VERB(fputc) { number(fputc((int)N(1), T(0))); }
VERB(fgetc) { int c = fgetc(T(0)); say(c == EOF ? "EOF" : "%02x", c); }
VERB(ungetc) { int c = ungetc((int)N(1), T(0)); say(c == EOF ? "EOF" : "%c", c); }
VERB(fgets) { char *p = fgets(buffer, (int)N(1), T(0)); if (p != NULL) bytes((long long)strlen(p), p); else say("NULL"); }
VERB(fprintf) { number(fprintf(T(0), "%s=%d;", R(1), (int)N(2))); }
VERB(dprintf) { number(dprintf(F(0), "%s=%d;", R(1), (int)N(2))); }
VERB(fscanf) { int a = 0, n = fscanf(T(0), "%d", &a); say("%d: %d", n, a); }

VERB(getline)
{
	char *line = NULL;
	size_t have = 0;
	ssize_t n = getline(&line, &have, T(0));

	if (n < 0)
		say("-1");
	else
		bytes(n, line);
	free(line);
}

CALL(fseek, BY(fseek(T(0), N(1), (int)N(2)), fseeko64(T(0), N(1), (int)N(2)), fseeko(T(0), N(1), (int)N(2))))
CALL(ftell, BY(ftell(T(0)), ftello64(T(0)), ftello(T(0))))
VERB(rewind) { rewind(T(0)); say("done"); }
CALL(fflush, fflush(T(0)))
CALL(setvbuf, setvbuf(T(0), NULL, (int)N(1), (size_t)N(2)))
CALL(feof, feof(T(0)) != 0)
CALL(ferror, ferror(T(0)) != 0)
VERB(clearerr) { clearerr(T(0)); say("done"); }
/* The descriptor stays the stream's, so it is a number here. */
VERB(fileno) { say("%s", borrowed(fileno(T(0))) >= 0 ? "fd" : "none"); }
VERB(hasfileno) { say("%d", fileno(T(0)) >= 0); }
VERB(freading) { say("%d %d %d", __freadable(T(0)) != 0, __fwritable(T(0)) != 0, __flbf(T(0)) != 0); }

static fpos_t position;
CALL(fgetpos, fgetpos(T(0), &position))
CALL(fsetpos, fsetpos(T(0), &position))

/* Wide characters: a line of Greek and Chinese in and out. */
VERB(locale) { say("%d", setlocale(LC_CTYPE, S(0)) != NULL); }
VERB(fputws) { number(fputws(L"\u03b1\u03b2 \u4e2d\u6587\n", T(0)) >= 0 ? 0 : -1); }

VERB(fgetws)
{
	static wchar_t line[100];
	wchar_t *p = fgetws(line, 100, T(0));

	if (p == NULL)
		say("NULL");
	for (; p != NULL && *p != L'\0'; p++)
		say("%x ", (unsigned)*p);
}

/* big STREAM N: N bytes in one fwrite, which go past its buffer */
VERB(big)
{
	size_t n = (size_t)N(1);
	char *p = malloc(n);

	memset(p, 'b', n);
	number((long long)fwrite(p, 1, n, T(0)));
	free(p);
}

VERB(bigread)
{
	size_t n = (size_t)N(1);
	char *p = malloc(n);

	number((long long)fread(p, 1, n, T(0)));
	free(p);
}

VERB(fgetwc) { wint_t c = fgetwc(T(0)); if (c == WEOF) say("WEOF %s", error_name()); else say("%x", (unsigned)c); }
VERB(fputwc) { wint_t c = putwc((wchar_t)N(1), T(0)); if (c == WEOF) say("WEOF %s", error_name()); else say("%x", (unsigned)c); }
VERB(ungetwc) { say("%x", (unsigned)ungetwc((wint_t)N(1), T(0))); }
VERB(fwprintf) { number(fwprintf(T(0), L"%s\u03b1%d;", R(1), (int)N(2))); }
VERB(fwscanf) { int a = 0, n = fwscanf(T(0), L"%d", &a); say("%d: %d", n, a); }
