/* What is done before main. */
#include "nv.h"

__attribute__((constructor)) static void start(void)
{
	const char *mount = nv_keep_environment("NVMECR_MOUNT");

	if (mount == NULL || *mount != '/')
		return; /* or without memory: nothing else will work either */
	nv_find_umask();
	if (!nv_find_mounts(mount))
		return;
	nv_prepare_process();
	nv_find_cwd();
	nv_find_descriptors();
}
