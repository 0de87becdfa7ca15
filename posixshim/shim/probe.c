/* Is memory of the application's there?
 *
 * The kernel says EFAULT to a bad pointer. A name, a struct or a vector that is read or
 * written here is looked at before, page by page, by the kernel: by two system calls
 * that touch the memory before they dislike what else they were given, and change
 * nothing. So no signal has a handler for this, in a program that does nothing with the
 * mount least of all. */
#include <linux/futex.h>
#include <string.h>

#include "kernel.h"
#include "nv.h"

#define PAGE 4096

/* nv_probe says whether the word that p is in can be read. There is no such way to
 * change a mask as -1. (Linux, kernel/signal.c: rt_sigprocmask.) The kernel takes NULL
 * for no mask, and reads nothing. */
NV_EARLY_CODE bool nv_probe(const void *p)
{
	uintptr_t word = (uintptr_t)p & ~(uintptr_t)7;

	return word != 0 && nv_kernel(SYS_rt_sigprocmask, -1, word, NULL, 8) != -EFAULT;
}

/* probe_write says whether the word that p is in can be written to: 0 is or-ed to it, at
 * once, as others may be writing, and somebody woken who sleeps on it, where nobody
 * does. (Linux, kernel/futex/waitwake.c: futex_wake_op.) */
static bool probe_write(void *p)
{
	uintptr_t word = (uintptr_t)p & ~(uintptr_t)3;

	return nv_kernel(SYS_futex, word, FUTEX_WAKE_OP_PRIVATE, 0, 0, word, FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0)) !=
	       -EFAULT;
}

/* on_stack says whether bytes lie in the page above this frame, as most structs do: that
 * is the stack of those who have called, and asking the kernel would take longer than
 * some of the calls. */
static bool on_stack(uintptr_t from, uintptr_t end)
{
	uintptr_t frame = (uintptr_t)__builtin_frame_address(0);

	return from >= frame && end - frame < PAGE;
}

static uintptr_t next_page(uintptr_t address)
{
	return (address | (PAGE - 1)) + 1;
}

/* nv_readable says whether n bytes can be read. */
bool nv_readable(const void *p, size_t n)
{
	uintptr_t from = (uintptr_t)p, end = from + n;

	if (end < from || on_stack(from, end))
		return end >= from;
	for (; from < end; from = next_page(from))
		if (!nv_probe((const void *)from))
			return false;
	return true;
}

/* nv_writable says whether they can be written to. */
bool nv_writable(void *p, size_t n)
{
	uintptr_t from = (uintptr_t)p, end = from + n;

	if (end < from || on_stack(from, end))
		return end >= from;
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
