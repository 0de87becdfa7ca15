/* umask. The shim applies it to modes before it passes them on, because the runtime that makes the call may be a server's. */
#include "kernel.h"
#include "nv.h"

NV_EARLY static _Atomic mode_t mask_now;

/* nv_init_umask is called before main. */
NV_EARLY_CODE void nv_init_umask(void)
{
	mode_t mask = (mode_t)nv_kernel(SYS_umask, 0);

	nv_kernel(SYS_umask, mask);
	atomic_store(&mask_now, mask);
}

mode_t nv_umasked(mode_t mode)
{
	return mode & ~atomic_load_explicit(&mask_now, memory_order_relaxed);
}

mode_t nv_umask(mode_t mask)
{
	atomic_store(&mask_now, mask & 0777);
	return REAL(umask)(mask);
}
