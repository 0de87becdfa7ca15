package workers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"nvmecr/internal/store"
)

// InJob returns this process's place in the job of mpirun or srun that it was
// started by; ok says that there is one, of more than one process.
func InJob() (place store.Place, ok bool, err error) {
	place, err = store.PlaceFromEnv(os.Getenv)
	return place, err == nil && place.Size > 1, err
}

// Rendezvous returns the file in directory dir at which the processes of our
// job meet.
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

// jobID returns what all processes of a job know, and those of no other job
// that lives.
func jobID(getenv func(string) string, parent func() []string) (string, error) {
	if job, step := getenv("SLURM_JOB_ID"), getenv("SLURM_STEP_ID"); job != "" && step != "" && getenv("OMPI_COMM_WORLD_RANK") == "" {
		return fmt.Sprintf("slurm-%s-%s", job, step), nil
	}
	for _, name := range []string{"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"} {
		if id := getenv(name); id != "" {
			return "pmix-" + id, nil
		}
	}
	// MPICH's Hydra tells a process nothing of the kind; but its proxies, our
	// parents, are all told where their mpiexec listens.
	args := parent()
	for i, a := range args {
		if a == "--control-port" && i+1 < len(args) {
			return "hydra-" + args[i+1], nil
		}
	}
	return "", errors.New("the launcher tells its processes no name of the job: use --launch")
}

// parentArguments is the command line of the process that started us.
func parentArguments() []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", os.Getppid()))
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\x00")
}
