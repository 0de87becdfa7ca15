/* System calls that a program makes by number with syscall(2), as libuv does statx. Those that may be ours are routed to the
 * wrapper of the C library's call (raw_gen.c, generated from calls.txt). */
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nv.h"

#define ARGUMENTS 6

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

/* warn_of_io_uring says, once, that requests of io_uring on files that are ours fail. Many programs set io_uring up for something
 * else before they use a mount (libuv). To them it says nothing. */
static void warn_of_io_uring(void)
{
	static _Atomic bool told;

	if ((nv_loaded() || nv_served()) && !atomic_exchange(&told, true))
		nv_complain("process %d uses io_uring, whose requests on files under %s fail: use other calls (fio --ioengine=libaio), "
			    "or start the program without the library; see docs/programs.md",
			    (int)getpid(), nv_mount);
}

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
	if (number == SYS_io_uring_setup)
		warn_of_io_uring();
#ifdef SYS_openat2
	/* Programs fall back to openat, as on kernels before 5.6. */
	if (number == SYS_openat2 && nv_route((int)a[0], (const char *)a[1], &at))
		return nv_error(ENOSYS);
#endif
	if (number == SYS_getcwd && nv_cwd() != 0)
		return getcwd_ours((char *)a[0], (size_t)a[1]);
	return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
