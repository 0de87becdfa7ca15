/* System calls that a program makes by number, as libuv does statx. Those that
 * may be about a file of ours are made like the call of the C library:
 * raw_gen.c, from the table. */
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "nv.h"

#define ARGUMENTS 6

#ifdef SYS_getcwd
/* working is the system call getcwd where the working directory is ours. It
 * returns the length, with the NUL. */
static long working(char *buf, size_t n)
{
	char name[2 * NV_PATH];

	if (n == 0)
		return nv_error(ERANGE);
	if (nv_getcwd(name, n < sizeof name ? n : sizeof name) == NULL)
		return -1;
	size_t length = strlen(name) + 1;

	if (nv_nowhere(buf))
		return nv_error(EFAULT);
	memcpy(buf, name, length);
	return (long)length;
}
#endif

/* nv_syscall takes the arguments as the C library does: as many as any system
 * call has, whatever the caller gave. */
long nv_syscall(long number, va_list ap)
{
	long a[ARGUMENTS], result;
	struct nv_path_at at;

	for (int i = 0; i < ARGUMENTS; i++)
		a[i] = va_arg(ap, long);
	if (number == SYS_utimensat && a[1] == 0 && a[3] == 0) /* of a descriptor, which the C library refuses */
		return futimens((int)a[0], (const struct timespec *)a[2]);
	if (nv_raw(number, a, &result))
		return result;
#ifdef SYS_openat2
	/* Callers have to do without it on old kernels, and then use openat. */
	if (number == SYS_openat2 && nv_route((int)a[0], (const char *)a[1], &at))
		return nv_error(ENOSYS);
#endif
#ifdef SYS_getcwd
	if (number == SYS_getcwd && nv_working() != 0)
		return working((char *)a[0], (size_t)a[1]);
#endif
	return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
