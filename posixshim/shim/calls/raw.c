/* System calls that a program makes by number with syscall(2), as libuv does statx. Those that may be ours are routed to the
 * wrapper of the C library's call (raw_gen.c, generated from calls.txt). */
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "nv.h"

#define ARGUMENTS 6

#ifdef SYS_getcwd
/* getcwd_ours is the system call getcwd if the working directory is ours. It returns the length with the NUL. */
static long getcwd_ours(char *buf, size_t n)
{
	char name[2 * NV_PATH];

	if (n == 0)
		return nv_error(ERANGE);
	if (nv_getcwd(name, n < sizeof name ? n : sizeof name) == NULL)
		return -1;
	size_t length = strlen(name) + 1;

	if (nv_near_null(buf))
		return nv_error(EFAULT);
	memcpy(buf, name, length);
	return (long)length;
}
#endif

/* nv_syscall reads six arguments, the most that a system call has, whatever the caller has passed, as the C library does. */
long nv_syscall(long number, va_list ap)
{
	long a[ARGUMENTS], result;
	struct nv_path_at at;

	for (int i = 0; i < ARGUMENTS; i++)
		a[i] = va_arg(ap, long);
	if (number == SYS_utimensat && a[1] == 0 && a[3] == 0) /* without a path; the C library's utimensat refuses that */
		return futimens((int)a[0], (const struct timespec *)a[2]);
	if (nv_raw(number, a, &result))
		return result;
#ifdef SYS_openat2
	/* Programs fall back to openat, as on kernels before 5.6. */
	if (number == SYS_openat2 && nv_route((int)a[0], (const char *)a[1], &at))
		return nv_error(ENOSYS);
#endif
#ifdef SYS_getcwd
	if (number == SYS_getcwd && nv_cwd() != 0)
		return getcwd_ours((char *)a[0], (size_t)a[1]);
#endif
	return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
