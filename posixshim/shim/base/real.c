/* The functions of the C library that the wrappers hide. Each is looked up when it is first used. */
#include <dlfcn.h>

#include "nv.h"

extern const char nv_real_names[][NV_NAME];

static int64_t missing(void)
{
	return nv_error(ENOSYS);
}

/* nv_resolve_real looks up the real function of a wrapper. Several threads may do so at once; all store the same pointer. */
NV_EARLY_CODE void *nv_resolve_real(unsigned index)
{
	void **slot = (void **)&nv_real + index;
	int saved = errno;
	void *f = dlsym(RTLD_NEXT, nv_real_names[index]);

	if (f == NULL)
		f = (void *)missing;
	__atomic_store_n(slot, f, __ATOMIC_RELEASE);
	errno = saved;
	return f;
}

/* nv_standard_stream returns the address of the C library's variable stdin, stdout or stderr. */
FILE **nv_standard_stream(int fd)
{
	static const char names[][sizeof "stdout"] = {"stdin", "stdout", "stderr"};
	static FILE **_Atomic found[3];

	if (atomic_load(&found[fd]) == NULL)
		atomic_store(&found[fd], (FILE **)dlsym(RTLD_DEFAULT, names[fd]));
	return atomic_load(&found[fd]);
}
