package workers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"nvmecr/internal/store"
)

// InJob returns the place of this process in the job of mpirun or srun that started it. ok reports
// whether there is such a job, with more than one process.
func InJob() (place store.Proc, ok bool, err error) {
	place, err = store.ProcFromEnv(os.Getenv)
	return place, err == nil && place.Size > 1, err
}

// Rendezvous returns the file in the directory dir through which the processes of this
// job find each other.
func Rendezvous(dir string) (string, error) {
	id, err := jobID(os.Getenv, parentArguments)
	if err != nil {
		return "", err
	}
	clean := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, id)
	return filepath.Abs(filepath.Join(dir, ".nvmecr-bench-"+clean))
}

// jobID returns a string that all processes of this job know, and that no other running job has.
func jobID(getenv func(string) string, parent func() []string) (string, error) {
	if job, step := getenv("SLURM_JOB_ID"), getenv("SLURM_STEP_ID"); job != "" && step != "" && getenv("OMPI_COMM_WORLD_RANK") == "" {
		return fmt.Sprintf("slurm-%s-%s", job, step), nil
	}
	for _, name := range []string{"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"} {
		if id := getenv(name); id != "" {
			return "pmix-" + id, nil
		}
	}
	// MPICH's Hydra does not give processes such a name. But its proxies, the parents
	// of the processes, all have the address of their mpiexec.
	args := parent()
	for i, a := range args {
		if a == "--control-port" && i+1 < len(args) {
			return "hydra-" + args[i+1], nil
		}
	}
	return "", errors.New("the launcher tells its processes no name of the job: use --launch")
}

// parentArguments returns the command line of the parent process.
func parentArguments() []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", os.Getppid()))
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\x00")
}
