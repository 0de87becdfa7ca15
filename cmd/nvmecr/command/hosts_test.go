package command

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/cli"
)

func environ(pairs ...string) func(string) string {
	m := make(map[string]string)
	for _, p := range pairs {
		name, value, _ := strings.Cut(p, "=")
		m[name] = value
	}
	return func(name string) string { return m[name] }
}

func TestCheckCommand(t *testing.T) {
	for _, c := range []struct {
		argv string
		env  []string
		says string
	}{
		{"mpirun -n 4 ./app", nil, ""},
		{"./app", []string{"SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_JOB_ID=3"}, ""}, // a batch script
		{"./app", []string{"PMI_RANK=0", "PMI_SIZE=1"}, ""},
		{"sbatch job.sh", nil, "put nvmecr into the script"},
		{"/usr/bin/sbatch job.sh", nil, "nvmecr run -- srun ./app"},
		{"./app", []string{"SLURM_PROCID=3", "SLURM_NTASKS=8", "SLURM_STEP_ID=0"}, "nvmecr run -- srun ./app"},
		{"./app", []string{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4"}, "nvmecr run -- mpirun -n 4 ./app"},
		{"./app", []string{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1"}, "rank 1 of 2 (RANK)"},
	} {
		err := checkCommand(strings.Fields(c.argv), environ(c.env...), false)
		if c.says == "" {
			assert.NoError(t, err, c.argv)
			continue
		}
		assert.ErrorContains(t, err, c.says, c.argv)
		assert.ErrorAs(t, err, new(cli.UsageError))
		if strings.Contains(c.argv, "sbatch") {
			continue
		}
		assert.NoError(t, checkCommand(strings.Fields(c.argv), environ(c.env...), true), "one on each node, of one job: %s", c.argv)
	}
}

func TestLaunchedJob(t *testing.T) {
	step := []string{"SLURM_JOB_ID=3", "SLURM_STEP_ID=2", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_NTASKS=8"}
	elastic := []string{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1"}
	for _, c := range []struct {
		what string
		env  []string
		id   string
	}{
		{"no launcher", nil, ""},
		{"a task of a step", step, "slurm-3.0.2"},
		{"a task of a step, by PMI", append(step, "PMI_RANK=1", "PMI_SIZE=2"), "slurm-3.0.2"},
		{"a task of a job that was queued again", append(step, "SLURM_RESTART_COUNT=1"), "slurm-3.1.2"},
		{"a rank of mpirun, whose daemon is a task", append(step, "OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8"), ""},
		{"the only task", []string{"SLURM_JOB_ID=3", "SLURM_STEP_ID=2", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1"}, ""},
		{"a batch script", []string{"SLURM_JOB_ID=3", "SLURM_PROCID=0", "SLURM_NTASKS=8"}, ""},
		{"a worker of torchrun", append(elastic, "TORCHELASTIC_RUN_ID=melt"), "torchrun-melt"},
		{"a worker of torchrun without an id", append(elastic, "TORCHELASTIC_RUN_ID=none"), ""},
		{"one with a long id", append(elastic, "TORCHELASTIC_RUN_ID="+strings.Repeat("m", 64)), ""},
		{"a worker of torchrun in a step", append(append(elastic, step...), "TORCHELASTIC_RUN_ID=melt"), "torchrun-melt"},
		{"ranks of mpirun", []string{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4"}, ""},
	} {
		assert.Equal(t, c.id, launchedJob(environ(c.env...)), c.what)
	}
}

func TestCheckHosts(t *testing.T) {
	dir := t.TempDir()
	here, both := filepath.Join(dir, "here"), filepath.Join(dir, "both")
	require.NoError(t, os.WriteFile(here, []byte("# ours\nnode1 slots=2\nlocalhost\n"), 0o600))
	require.NoError(t, os.WriteFile(both, []byte("node1.cluster\nnode2:4\n"), 0o600))
	program := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(program, nil, 0o700))
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	require.NotEmpty(t, addrs)
	own, _, _ := strings.Cut(addrs[len(addrs)-1].String(), "/")
	for _, c := range []struct {
		argv string
		env  string
		says string
	}{
		{"mpirun -n 4 ./app", "", ""},
		// Options behind the program are for the program.
		{"mpirun -n 4 ./app -f " + both, "", ""},
		{"mpirun -n 4 gmx mdrun --host node2 -H 3", "", ""},
		{"mpirun --oversubscribe " + program + " -f " + both, "", ""},
		{"mpirun --mca btl self,tcp -n 4 ./app -H Ne", "", ""},
		{"mpiexec.hydra -genv A b -n 2 ./app -f " + both, "", ""},
		{"srun -n 4 ior -w -r -b 1m", "", ""},
		{"srun -n4 ./app -N 100", "", ""},
		{"torchrun --nproc-per-node=2 train.py --nnodes=4", "", ""},
		{"mpirun --host " + own + " ./app", "", ""},
		// There may be several programs.
		{"mpirun -n 1 ./a -f " + both + " : -n 1 -H node2 ./b", "", "ranks on node2"},
		{"mpirun --mca btl self,tcp -n 4 -H node2 ./app", "", "ranks on node2"},
		{"mpirun --oversubscribe -x A -H node2 " + program, "", "ranks on node2"},
		{"srun -n4 -N2 ./app", "", "ranks on 2 hosts"},
		{"srun -wnode2 ./app", "", "ranks on node2"},
		{"srun -N 1 ./app", "SLURM_JOB_NUM_NODES=2", ""},
		{"mpirun -H localhost:4 ./app", "SLURM_JOB_NUM_NODES=2", ""},
		{"mpirun -n 4 ./app", "SLURM_JOB_NUM_NODES=1", ""},
		{"mpirun -n 4 ./app", "SLURM_JOB_NUM_NODES=2", "2 nodes (SLURM_JOB_NUM_NODES)"},
		{"./app", "SLURM_NNODES=3", "3 nodes"},
		{"mpirun --host node1,localhost:3,127.0.0.1 ./app", "", ""},
		{"mpirun --host node1:2,node2:2 ./app", "", "ranks on node2"},
		{"mpirun -H node2 ./app", "", "ranks on node2"},
		{"mpiexec -hosts NODE1.cluster,node3 ./app", "", "ranks on node3"},
		{"mpirun --hostfile " + here + " ./app", "", ""},
		{"mpirun --hostfile " + both + " ./app", "", "ranks on node2"},
		{"mpiexec.hydra -f " + both + " ./app", "", "ranks on node2"},
		{"mpirun -machinefile " + filepath.Join(dir, "none") + " ./app", "", ""},
		{"mpirun -N 2 ./app", "", ""}, // on each host
		{"srun -N 2 ./app", "", "ranks on 2 hosts"},
		{"srun --nodes=2-4 ./app", "", "ranks on 2 hosts"},
		{"srun --nodes 1 ./app", "", ""},
		{"srun -w node2 ./app", "", "ranks on node2"},
		{"torchrun --nnodes=4 train.py", "", "ranks on 4 hosts"},
		{"./app -H node2", "", ""},
		{"mpirun ./app", "OMPI_MCA_orte_default_hostfile=" + both, "ranks on node2"},
		{"mpiexec.hydra ./app", "HYDRA_HOST_FILE=" + both, "ranks on node2"},
		{"mpiexec.hydra -f " + here + " ./app", "HYDRA_HOST_FILE=" + both, ""},
		{"./app", "HYDRA_HOST_FILE=" + both, ""}, // starts no ranks
		{"mpirun ./app", "PBS_NODEFILE=" + both, "host node2, too (PBS_NODEFILE)"},
		{"mpirun ./app", "PBS_NODEFILE=" + here, ""},
		{"mpirun -H localhost:4 ./app", "PBS_NODEFILE=" + both, ""},
		{"mpirun ./app", "LSB_DJOB_HOSTFILE=" + both, "(LSB_DJOB_HOSTFILE)"},
	} {
		err := checkHosts(strings.Fields(c.argv), environ(c.env), "node1")
		if c.says == "" {
			assert.NoError(t, err, c.argv)
			continue
		}
		assert.ErrorContains(t, err, c.says, c.argv)
		assert.ErrorContains(t, err, "--target")
	}
}

func TestCheckRequeued(t *testing.T) {
	assert.NoError(t, checkRequeued("x", "/d", environ()))
	assert.NoError(t, checkRequeued("x", "/d", environ("SLURM_RESTART_COUNT=0")))
	assert.ErrorContains(t, checkRequeued("x", "/d", environ("SLURM_RESTART_COUNT=2", "SLURM_JOB_ID=7")), "job 7 was started again")
}
