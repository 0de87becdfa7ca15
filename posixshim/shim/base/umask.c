/* umask: the runtime is told modes that it has been applied to. */
#include "kernel.h"
#include "nv.h"

NV_EARLY static _Atomic mode_t mask_now;

/* nv_find_umask is called before main. */
NV_EARLY_CODE void nv_find_umask(void)
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
