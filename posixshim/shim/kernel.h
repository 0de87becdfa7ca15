/* System calls that bypass the C library. Before main, looking up a function of the C library takes longer than the call
 * itself. For some system calls the C library has no function. */
#ifndef NV_KERNEL_H
#define NV_KERNEL_H

#include <sys/syscall.h>

/* nv_kernel6 makes a system call and returns the kernel's result: -errno if it failed. */
static inline long nv_kernel6(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
		      x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#else
#error "how does this machine make a system call?"
#endif
}

#define nv_kernel_with(number, a, b, c, d, e, f, ...) \
	nv_kernel6(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* nv_kernel(number, ...) takes as many arguments as the call has. */
#define nv_kernel(...) nv_kernel_with(__VA_ARGS__, 0, 0, 0, 0, 0, 0, )

#endif
