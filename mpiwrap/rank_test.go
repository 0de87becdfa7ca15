//go:build openmpi || mpich

package mpiwrap

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	mpi "github.com/sbromberger/gompi"

	"nvmecr/balancer"
)

// Under a launcher the test program is an MPI application, which initialises MPI itself. TestUnderMPI compares its
// output.
func TestMain(m *testing.M) {
	if os.Getenv("MPIWRAP_TEST_TARGETS") == "" {
		os.Exit(m.Run())
	}
	var targets int
	if _, err := fmt.Sscan(os.Getenv("MPIWRAP_TEST_TARGETS"), &targets); err != nil {
		panic(err)
	}
	plan, err := balancer.ParsePlan(os.Getenv("MPIWRAP_TEST_PLAN"))
	if err != nil {
		panic(err)
	}
	if _, err := Join(plan, targets, host()); !errors.Is(err, ErrNoMPI) {
		fmt.Println("Join before MPI_Init:", err)
		os.Exit(1)
	}
	mpi.Start(false)
	var out strings.Builder
	application(&out, plan, targets)
	// One write per rank, so that the lines of ranks do not mix.
	_, _ = os.Stdout.WriteString(out.String())
	mpi.Stop()
	os.Exit(0)
}

// host returns the host name that a rank claims: ranks 0 and 2 are on a, 1 and 3 on b.
func host() string {
	for _, name := range []string{"OMPI_COMM_WORLD_RANK", "PMI_RANK"} {
		if rank, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return string(rune('a' + rank%2))
		}
	}
	return "a"
}

func application(out *strings.Builder, plan balancer.Plan, targets int) {
	job, err := Join(plan, targets, host())
	if err != nil {
		fmt.Fprintln(out, "error:", err)
		return
	}
	fmt.Fprintf(out, "joined %d of %d, shared %d of %d\n", job.Rank, job.Size, job.SharedRank, job.SharedSize)
	fmt.Fprintf(out, "%d all well: %v\n", job.Rank, job.Agree(nil))

	var mine error
	switch job.Rank {
	case 2:
		mine = fmt.Errorf("disk full on %s: %w", strings.Repeat("x", 600), syscall.ENOSPC)
	case 3:
		mine = errors.New("without an errno")
	}
	report(out, job, job.Agree(mine))
	mine = nil
	if job.Rank == 3 {
		mine = errors.New("without an errno")
	}
	report(out, job, job.Agree(mine))
	// Ranks that share a namespace get the result of its lowest rank.
	fmt.Fprintf(out, "%d formatted: %v\n", job.Rank, job.Formatted(nil))
	mine = errors.New("of no matter")
	if job.SharedRank == 0 {
		mine = fmt.Errorf("too small for %d: %w", job.SharedSize, syscall.ENOSPC)
	}
	err = job.Formatted(mine)
	fmt.Fprintf(out, "%d not formatted: %v, %v\n", job.Rank, err, errors.Is(err, syscall.ENOSPC))

	// One rank reports that the plan cannot place the ranks.
	_, err = Join(balancer.List([]int{0, 0, 7}), targets, host())
	report(out, job, err)
	// The communicators still work, for the runtime and for the application.
	fmt.Fprintf(out, "%d all well again: %v\n", job.Rank, job.Agree(nil))
	mpi.NewCommunicator(nil).Barrier()
}

func report(out *strings.Builder, job *Job, err error) {
	var d *Disagreement
	if !errors.As(err, &d) {
		fmt.Fprintf(out, "%d no disagreement: %v\n", job.Rank, err)
		return
	}
	fmt.Fprintf(out, "%d failed: rank %d, %v, cause of %d bytes %.9s, mine %v\n",
		job.Rank, d.Rank, d.Errno, len(d.Cause), d.Cause, d.Mine)
}
