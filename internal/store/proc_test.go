package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPlaceFromEnv checks the rank and the number of ranks for the environments of launchers.
func TestPlaceFromEnv(t *testing.T) {
	type env map[string]string
	for _, c := range []struct {
		name string
		env  env
		want Proc
		err  string
	}{
		{"alone", env{}, Proc{0, 1, ""}, ""},
		{"OpenMPI", env{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, Proc{3, 4, "OMPI_COMM_WORLD_RANK"}, ""},
		{"Hydra", env{"PMI_RANK": "2", "PMI_SIZE": "8"}, Proc{2, 8, "PMI_RANK"}, ""},
		{"MVAPICH", env{"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, Proc{1, 2, "MV2_COMM_WORLD_RANK"}, ""},
		{"srun", env{"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_STEP_ID": "0"}, Proc{5, 6, "SLURM_PROCID"}, ""},
		{"srun with fewer tasks than the job has", env{"SLURM_PROCID": "1", "SLURM_NTASKS": "6", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "3"},
			Proc{1, 2, "SLURM_PROCID"}, ""},
		{"srun --mpi=pmix", env{"PMIX_RANK": "5", "SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_STEP_ID": "0"}, Proc{5, 6, "PMIX_RANK"}, ""},
		{"batch script", env{"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "1"}, Proc{0, 1, ""}, ""},
		{"batch script of a Slurm that numbers it", env{"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_STEP_ID": "4294967291"}, Proc{0, 1, ""}, ""},
		{"mpirun in a Slurm job: the daemon's variables are left in place",
			env{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "PMIX_RANK": "3"},
			Proc{3, 4, "OMPI_COMM_WORLD_RANK"}, ""},
		{"torchrun", env{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}, Proc{3, 4, "RANK"}, ""},
		{"torchrun as a task of srun", env{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none",
			"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, Proc{3, 4, "RANK"}, ""},
		{"deepspeed's launcher", env{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "h"}, Proc{1, 2, "RANK"}, ""},
		{"mpirun of a program that sets RANK", env{"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
			Proc{3, 4, "OMPI_COMM_WORLD_RANK"}, ""},
		{"somebody's RANK", env{"RANK": "1", "WORLD_SIZE": "2"}, Proc{0, 1, ""}, ""},
		{"Flux", env{"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "3"}, Proc{1, 3, "FLUX_TASK_RANK"}, ""},
		{"jsrun", env{"JSM_NAMESPACE_RANK": "2", "JSM_NAMESPACE_SIZE": "3"}, Proc{2, 3, "JSM_NAMESPACE_RANK"}, ""},
		{"PMIx without a size", env{"PMIX_RANK": "0"}, Proc{0, 1, ""}, ""},
		{"not a rank", env{"PMI_RANK": "x", "PMI_SIZE": "8"}, Proc{}, `PMI_RANK="x" is not a rank of PMI_SIZE=8`},
		{"rank beyond", env{"PMI_RANK": "8", "PMI_SIZE": "8"}, Proc{}, `PMI_RANK="8" is not a rank of PMI_SIZE=8`},
		{"negative", env{"OMPI_COMM_WORLD_RANK": "-1", "OMPI_COMM_WORLD_SIZE": "4"}, Proc{}, "not a rank"},
		{"no ranks", env{"PMI_RANK": "0", "PMI_SIZE": "0"}, Proc{}, `PMI_SIZE="0" is not a number of ranks`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ProcFromEnv(func(name string) string { return c.env[name] })
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
}
