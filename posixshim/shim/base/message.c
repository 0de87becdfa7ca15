/* Messages to the user, on standard error. */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nv.h"

/* nv_complain writes one line on stderr. */
void nv_complain(const char *format, ...)
{
	char line[512] = "nvmecr: ";
	size_t n = strlen(line);
	int saved = errno;
	va_list ap;

	va_start(ap, format);
	int m = vsnprintf(line + n, sizeof line - n - 1, format, ap);
	va_end(ap);
	n = m < 0 ? n : n + (size_t)m;
	if (n > sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	/* syscall, unlike write, is no cancellation point. If it fails there is no other place for a message. */
	(void)REAL(syscall)(SYS_write, STDERR_FILENO, line, n);
	errno = saved;
}

/* nv_unsupported fails with ENOTSUP. The first time it also says on standard error which call is not supported. */
int nv_unsupported(const char *call)
{
	static _Atomic bool told;

	if (!atomic_exchange(&told, true))
		nv_complain("%s does not work under %s: ENOTSUP, see docs/programs.md", call, nv_mount);
	return nv_error(ENOTSUP);
}

void nv_overflow(void)
{
	nv_complain("buffer overflow detected: a file call was given a buffer smaller than it asks to fill");
	abort();
}
