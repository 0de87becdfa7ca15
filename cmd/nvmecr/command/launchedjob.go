package command

import (
	"cmp"
	"strconv"

	"nvmecr/internal/runrecord"
	"nvmecr/internal/store"
)

// launchers are what tells all tasks of one launch, and no others that live, the same. Variables of a whole allocation
// (PBS_JOBID, SLURM_JOB_ID alone) do not: a script may start several runs in one.
var launchers = []struct {
	prefix string
	of     func(proc store.Proc, getenv func(string) string) bool
	id     func(getenv func(string) string) string
}{
	{prefix: "torchrun-", of: ofTorchrun, id: func(getenv func(string) string) string { return getenv("TORCHELASTIC_RUN_ID") }},
	{prefix: "slurm-", of: ofStep, id: func(getenv func(string) string) string {
		restarts := cmp.Or(getenv("SLURM_RESTART_COUNT"), "0") // a job that is queued again has the steps again
		return getenv("SLURM_JOB_ID") + "." + restarts + "." + getenv("SLURM_STEP_ID")
	}},
}

// launchedJob is the id of the job of an `nvmecr run` that is itself one of several tasks of a launcher: together these are one run. "" where it is
// none, or the launcher says nothing that its tasks alone have.
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

// ofTorchrun: without --rdzv-id the id of all jobs is "none".
func ofTorchrun(proc store.Proc, getenv func(string) string) bool {
	id := getenv("TORCHELASTIC_RUN_ID")
	return proc.From == "RANK" && id != "" && id != "none"
}

// ofStep: mpirun starts its daemons by srun, and their steps are not those of its ranks.
func ofStep(proc store.Proc, getenv func(string) string) bool {
	return getenv("SLURM_JOB_ID") != "" && getenv("SLURM_STEP_ID") != "" &&
		getenv("SLURM_PROCID") == strconv.Itoa(proc.Rank) && getenv("SLURM_STEP_NUM_TASKS") == strconv.Itoa(proc.Size)
}
