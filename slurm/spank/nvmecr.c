/* The SPANK plugin of nvmecr: sbatch, salloc and srun get the option --checkpoint, and Slurm's hooks its value, as
 * SPANK_NVMECR_CHECKPOINT. What it means is decided there: this is loaded into programs of Slurm, and has no policy. */
#include <stdio.h>

#include <slurm/spank.h>

SPANK_PLUGIN(nvmecr, 1)

static char request[256]; /* of which "" is none */

static int checkpoint(int value, const char *argument, int remote)
{
	(void)value;
	(void)remote;
	return snprintf(request, sizeof request, "%s", argument) < (int)sizeof request ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
}

static struct spank_option option = {
	"checkpoint", "nvmf:N[,capacity=SIZE][,name=NAME][,retain=TIME][,strict]",
	"checkpoint space on N targets, for the life of the job (nvmecr)", 1, 0, checkpoint,
};

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	return spank_option_register(sp, &option);
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	if (!request[0] || spank_remote(sp))
		return ESPANK_SUCCESS;
	return spank_job_control_setenv(sp, "NVMECR_CHECKPOINT", request, 1);
}
