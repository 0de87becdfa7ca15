/* System calls that a program makes by number, as libuv does statx. Those that
 * may be about a file of ours are made like the call of the C library:
 * raw_gen.c, from the table. */
#include <sys/syscall.h>

#include "nv.h"

#define ARGUMENTS 6

/* nv_syscall takes the arguments as the C library does: as many as any system
 * call has, whatever the caller gave. */
long nv_syscall(long number, va_list ap)
{
	long a[ARGUMENTS], result;
	struct nv_place at;

	for (int i = 0; i < ARGUMENTS; i++)
		a[i] = va_arg(ap, long);
	if (nv_raw(number, a, &result))
		return result;
#ifdef SYS_openat2
	/* Callers have to do without it on old kernels, and then use openat. */
	if (number == SYS_openat2 && nv_route((int)a[0], (const char *)a[1], &at))
		return nv_error(ENOSYS);
#endif
	return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
