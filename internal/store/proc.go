package store

import (
	"fmt"
	"strconv"

	"nvmecr/internal/parttable"
)

// A Proc is a process of a parallel job, as PMIx calls it: its rank, and the number of ranks.
type Proc struct {
	Rank, Size int
	// From is the source of the rank: a variable, "MPI", or "" for a program without a launcher.
	From string
}

// Singleton reports whether the process is the only one of its job, or was started by no launcher; MPI has the same term. It writes the
// singleton partition (see the package comment).
func (p Proc) Singleton() bool {
	return p.Size == 1 && p.Rank != parttable.Copies || p.Rank == parttable.Singleton
}

// Tree returns the name of the directory in which `nvmecr serve` exports the files of this process, and the number of the tree in the
// FUSE view (fuseview.Tree).
func (p Proc) Tree() (name string, number uint64) {
	if p.Singleton() {
		return "job", 1 << 20 // greater than the number of any rank's tree
	}
	return fmt.Sprintf("%dof%d", p.Rank, p.Size), uint64(p.Rank) + 1
}

// partitionName returns the name of a rank's partition in messages.
func partitionName(rank int) string {
	switch rank {
	case parttable.Singleton:
		return "the singleton partition"
	case parttable.Copies:
		return "the copy area"
	}
	return fmt.Sprintf("the partition of rank %d", rank)
}

// launchers are the variables in which launchers pass rank and number of ranks, most specific first: a launcher that starts its daemons
// through another launcher leaves the variables of that in place. torchrun comes first, since it can itself be a task of another
// launcher. RANK alone comes last, and only with its companions, since many programs set it.
var launchers = []struct {
	rank  string
	sizes []string                              // the first variable that is set is used
	where func(getenv func(string) string) bool // condition for using the variables; nil: none
}{
	{rank: "RANK", sizes: []string{"WORLD_SIZE"}, where: has("TORCHELASTIC_RUN_ID")},
	{rank: "OMPI_COMM_WORLD_RANK", sizes: []string{"OMPI_COMM_WORLD_SIZE"}},
	{rank: "MV2_COMM_WORLD_RANK", sizes: []string{"MV2_COMM_WORLD_SIZE"}},
	{rank: "PMI_RANK", sizes: []string{"PMI_SIZE"}},
	{rank: "PMIX_RANK", sizes: []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
	{rank: "FLUX_TASK_RANK", sizes: []string{"FLUX_JOB_SIZE"}},
	{rank: "JSM_NAMESPACE_RANK", sizes: []string{"JSM_NAMESPACE_SIZE"}},
	{rank: "SLURM_PROCID", sizes: []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, where: inStep},
	{rank: "RANK", sizes: []string{"WORLD_SIZE"}, where: has("LOCAL_RANK")},
}

// has returns the condition that a variable is set.
func has(name string) func(getenv func(string) string) bool {
	return func(getenv func(string) string) bool { return getenv(name) != "" }
}

// ProcFromEnv returns the rank from the environment of a launcher: mpirun of OpenMPI, Hydra (MPICH), MVAPICH, a PMIx launcher, Flux,
// jsrun, a Slurm step, torchrun, and others that set RANK, WORLD_SIZE and LOCAL_RANK like torchrun. Without a launcher it is rank 0 of
// 1. It fails if the variables are inconsistent.
func ProcFromEnv(getenv func(string) string) (Proc, error) {
	for _, l := range launchers {
		rank := getenv(l.rank)
		if rank == "" || l.where != nil && !l.where(getenv) {
			continue
		}
		for _, name := range l.sizes {
			if size := getenv(name); size != "" {
				return parsePlace(l.rank, rank, name, size)
			}
		}
	}
	return Proc{Rank: 0, Size: 1}, nil
}

func parsePlace(rankName, rank, sizeName, size string) (Proc, error) {
	n, err := strconv.ParseUint(size, 10, 31)
	if err != nil || n == 0 {
		return Proc{}, fmt.Errorf("%s=%q is not a number of ranks", sizeName, size)
	}
	r, err := strconv.ParseUint(rank, 10, 31)
	if err != nil || r >= n {
		return Proc{}, fmt.Errorf("%s=%q is not a rank of %s=%s", rankName, rank, sizeName, size)
	}
	return Proc{Rank: int(r), Size: int(n), From: rankName}, nil
}

// inStep reports whether this process is a task of a Slurm step. A batch script has SLURM_PROCID=0 and the
// SLURM_NTASKS of its job, but is no task: its SLURM_STEP_ID is missing, or one of the reserved ids at the end of the
// range.
func inStep(getenv func(string) string) bool {
	id, err := strconv.ParseUint(getenv("SLURM_STEP_ID"), 10, 32)
	return err == nil && id < 0xfffffff0
}
