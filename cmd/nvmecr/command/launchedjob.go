package command

import (
	"cmp"
	"strconv"

	"nvmecr/internal/runrecord"
	"nvmecr/internal/store"
)

// launchers are the launchers whose variables have an id that all tasks of one launch share, and no other launch
// does. Variables of a whole allocation (PBS_JOBID, SLURM_JOB_ID alone) are no such id: a script may start several
// runs in one allocation.
var launchers = []struct {
	prefix string
	of     func(proc store.Proc, getenv func(string) string) bool
	id     func(getenv func(string) string) string
}{
	{prefix: "torchrun-", of: ofTorchrun, id: func(getenv func(string) string) string { return getenv("TORCHELASTIC_RUN_ID") }},
	{prefix: "slurm-", of: ofStep, id: func(getenv func(string) string) string {
		restarts := cmp.Or(getenv("SLURM_RESTART_COUNT"), "0") // a requeued job has the same step numbers
		return getenv("SLURM_JOB_ID") + "." + restarts + "." + getenv("SLURM_STEP_ID")
	}},
}

// launchedJob returns the id of the job of an `nvmecr run` that is itself one of several tasks of a launcher: these
// tasks are one run together. It returns "" for a process without a launcher, and if the launcher sets no id of the
// launch.
func launchedJob(getenv func(string) string) string {
	proc, err := store.ProcFromEnv(getenv)
	if err != nil || proc.Size < 2 {
		return ""
	}
	for _, l := range launchers {
		if !l.of(proc, getenv) {
			continue
		}
		if id := l.prefix + l.id(getenv); len(id) <= runrecord.MaxJob {
			return id
		}
	}
	return ""
}

// ofTorchrun reports whether torchrun started the process. Without --rdzv-id the id is "none" for every job.
func ofTorchrun(proc store.Proc, getenv func(string) string) bool {
	id := getenv("TORCHELASTIC_RUN_ID")
	return proc.From == "RANK" && id != "" && id != "none"
}

// ofStep reports whether srun started the process. It excludes the ranks of mpirun, whose daemons srun has started.
func ofStep(proc store.Proc, getenv func(string) string) bool {
	return getenv("SLURM_JOB_ID") != "" && getenv("SLURM_STEP_ID") != "" &&
		getenv("SLURM_PROCID") == strconv.Itoa(proc.Rank) && getenv("SLURM_STEP_NUM_TASKS") == strconv.Itoa(proc.Size)
}
