package mpiwrap

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// implementation is an MPI implementation to test with.
type implementation struct {
	tag      string
	launcher []string
	env      func(t *testing.T) []string // to build the test program
}

var flavours = []implementation{
	{
		tag:      "openmpi",
		launcher: []string{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "4"},
		env:      func(*testing.T) []string { return nil },
	},
	{
		tag:      "mpich",
		launcher: []string{"mpirun.mpich", "-n", "4"},
		env: func(t *testing.T) []string {
			cflags, err := exec.Command("pkg-config", "--cflags", "mpich").Output()
			require.NoError(t, err)
			return []string{"CGO_CFLAGS=" + strings.TrimSpace(string(cflags)), "CGO_LDFLAGS=-Wl,--as-needed -lmpich"}
		},
	},
}

// TestUnderMPI runs a program of four ranks with each MPI: they join, agree, disagree and agree again.
func TestUnderMPI(t *testing.T) {
	for _, f := range flavours {
		t.Run(f.tag, func(t *testing.T) {
			if _, err := exec.LookPath(f.launcher[0]); err != nil {
				t.Skip("not installed: ", err)
			}
			program := filepath.Join(t.TempDir(), "rank")
			build := exec.Command("go", "test", "-c", "-tags", f.tag, "-o", program, ".")
			build.Env = append(os.Environ(), f.env(t)...)
			text, err := build.CombinedOutput()
			require.NoError(t, err, "%s", text)
			for _, c := range []struct {
				plan    string
				targets int
				shared  []string // rank and size in MPI_COMM_CR, for each rank
				lowest  []int    // lowest rank of each MPI_COMM_CR
			}{
				{"", 1, []string{"0 of 4", "1 of 4", "2 of 4", "3 of 4"}, []int{0, 0, 0, 0}},
				{"", 3, []string{"0 of 2", "0 of 1", "0 of 1", "1 of 2"}, []int{0, 1, 2, 0}},
				{"", 5, []string{"0 of 1", "0 of 1", "0 of 1", "0 of 1"}, []int{0, 1, 2, 3}},
				{"b=0;a=1", 2, []string{"0 of 2", "0 of 2", "1 of 2", "1 of 2"}, []int{0, 1, 0, 1}},
				{"1,0*3", 2, []string{"0 of 1", "0 of 3", "1 of 3", "2 of 3"}, []int{0, 1, 1, 1}},
			} {
				run := exec.Command(f.launcher[0], append(f.launcher[1:], program)...)
				run.Env = append(os.Environ(), fmt.Sprintf("MPIWRAP_TEST_TARGETS=%d", c.targets), "MPIWRAP_TEST_PLAN="+c.plan)
				var said strings.Builder // messages of the launcher
				run.Stderr = &said
				text, err := run.Output()
				require.NoError(t, err, "%s%s", text, &said)
				lines := strings.Split(strings.TrimSpace(string(text)), "\n")
				slices.Sort(lines)
				assert.Equal(t, expected(c.shared, c.lowest), lines, &said)
			}
		})
	}
}

// expected is what the ranks print, sorted.
func expected(shared []string, lowest []int) []string {
	var lines []string
	for r := 0; r < 4; r++ {
		notFormatted := fmt.Sprintf("too small for %s: %v", strings.Split(shared[r], " ")[2], syscall.ENOSPC)
		if lowest[r] != r {
			notFormatted = fmt.Sprintf("rank %d: %s", lowest[r], notFormatted)
		}
		lines = append(lines,
			fmt.Sprintf("%d formatted: <nil>", r),
			fmt.Sprintf("%d not formatted: %s, true", r, notFormatted),
			fmt.Sprintf("%d failed: rank 0, %v, cause of %d bytes the mappi, mine %v", r, syscall.EIO, len("the mapping 0*2,7 names target 7, and there are targets 0 to 0"), r == 0),
			fmt.Sprintf("joined %d of 4, shared %s", r, shared[r]),
			fmt.Sprintf("%d all well: <nil>", r),
			fmt.Sprintf("%d failed: rank 2, %v, cause of %d bytes disk full, mine %v", r, syscall.ENOSPC, maxCause, r == 2),
			fmt.Sprintf("%d failed: rank 3, %v, cause of 16 bytes without a, mine %v", r, syscall.EIO, r == 3),
			fmt.Sprintf("%d all well again: <nil>", r))
	}
	slices.Sort(lines)
	return lines
}

func TestErrno(t *testing.T) {
	assert.Equal(t, syscall.ENOSPC, errnoOf(fmt.Errorf("a: %w", syscall.ENOSPC)))
	assert.Equal(t, syscall.ENOENT, errnoOf(&os.PathError{Err: syscall.ENOENT}))
	assert.Equal(t, syscall.EIO, errnoOf(ErrNoMPI))
	d := error(&Disagreement{Rank: 3, Errno: syscall.ENOSPC, Cause: "full"})
	assert.ErrorIs(t, d, syscall.ENOSPC)
	assert.EqualError(t, d, "rank 3: full")
}
