/* Initialization before main. If NVMECR_MOUNT is not set, no other part of the library is used. */
#include "nv.h"

__attribute__((constructor)) static void start(void)
{
	const char *mount = nv_save_environment("NVMECR_MOUNT");

	if (mount == NULL || *mount != '/')
		return; /* there is no mount, or no memory, without which the program will not work either */
	nv_init_umask();
	if (!nv_init_mounts(mount))
		return;
	nv_prepare_process();
	nv_init_cwd();
	nv_init_descriptors();
}
