/* Is memory of the application's there?
 *
 * The kernel says EFAULT to a bad pointer. A name, a struct or a vector that is
 * read or written here is looked at before: a probe is an instruction at a known
 * address, and a fault of it goes on where it says no (nv_mend_probe). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "machine.h"
#include "nv.h"

#define PAGE 4096

#if defined(__x86_64__)
#define LOAD "movb (%rdi), %al\n\tmovl $1, %eax\n\tret\n"
#define STORE "lock orb $0, (%rdi)\n\tmovl $1, %eax\n\tret\n"
#define BAD "xorl %eax, %eax\n\tret\n"
#elif defined(__aarch64__)
#define LOAD "ldrb w1, [x0]\n\tmov w0, #1\n\tret\n"
#define STORE "ldrb w1, [x0]\n\tstrb w1, [x0]\n\tmov w0, #1\n\tret\n"
#define BAD "mov w0, #0\n\tret\n"
#else
#error "how does this machine read and write a byte?"
#endif

#define FUNCTION(name, code) ".type " name ", @function\n" name ":\n\t" code ".size " name ", . - " name "\n"

__asm__(".pushsection .text.startup, \"ax\", @progbits\n.hidden nv_probe\n.globl nv_probe\n" FUNCTION("nv_probe", LOAD)
	FUNCTION("probe_write", STORE) FUNCTION("probe_bad", BAD) ".popsection\n");

extern bool probe_write(void *p) __attribute__((visibility("hidden")));
extern bool probe_bad(void) __attribute__((visibility("hidden")));

/* nv_mend_probe says whether a fault is one of a probe, and lets that go on. */
bool nv_mend_probe(ucontext_t *context)
{
	uintptr_t at = (uintptr_t)NV_COUNTER(context);

	if (at < (uintptr_t)nv_probe || at >= (uintptr_t)probe_bad)
		return false;
	NV_COUNTER(context) = (__typeof__(NV_COUNTER(context)))(uintptr_t)probe_bad;
	return true;
}

static uintptr_t next_page(uintptr_t address)
{
	return (address | (PAGE - 1)) + 1;
}

/* nv_there says whether n bytes can be read. */
bool nv_there(const void *p, size_t n)
{
	uintptr_t from = (uintptr_t)p, end = from + n;

	if (end < from)
		return false;
	for (; from < end; from = next_page(from))
		if (!nv_probe((const void *)from))
			return false;
	return true;
}

/* nv_writable says whether they can be written to. */
bool nv_writable(void *p, size_t n)
{
	uintptr_t from = (uintptr_t)p, end = from + n;

	if (end < from)
		return false;
	for (; from < end; from = next_page(from))
		if (!probe_write((void *)from))
			return false;
	return true;
}

/* nv_string says whether a string can be read to its end. */
NV_EARLY_CODE bool nv_string(const char *s)
{
	while (nv_probe(s)) {
		size_t rest = next_page((uintptr_t)s) - (uintptr_t)s;

		if (memchr(s, '\0', rest) != NULL)
			return true;
		s += rest;
	}
	return false;
}
