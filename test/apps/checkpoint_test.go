package apps

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKilledKeepers kills a program that saves its state with a Python library, and all other processes. Started again it has to continue
// from the last state that it had acknowledged, or from the one it was just saving, with the values of an undisturbed run.
func TestKilledKeepers(t *testing.T) {
	for _, library := range []string{"numpy", "h5py", "netCDF4", "torch", "sqlite3"} {
		t.Run(library, func(t *testing.T) {
			need(t, python, "python:numpy", "python:"+library)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			s := newStage(t)
			line := func(dir string, last int) []string {
				return []string{python, source(t, "checkpoint.py"), library, dir, strconv.Itoa(last)}
			}

			job, err := s.Start(append(s.RunFlags("state", "--fresh"), line(mount, 1<<30)...), environment...)
			require.NoError(t, err)
			for len(job.Stdout.Lines()) < 20 {
				require.False(t, job.Ended(), "it ended: %s%s", job.Stdout.Tail(10), job.Stderr.Tail(10))
				require.NoError(t, ctx.Err())
				time.Sleep(20 * time.Millisecond)
			}
			_, err = s.Kill()
			require.NoError(t, err)
			kept := len(job.Stdout.Lines())

			last := kept + 10
			again := runs(t, s, append(s.RunFlags("state"), line(mount, last)...)...)
			require.NoError(t, again.err)
			whole := runs(t, s, line(native(t, s), last)...)
			require.NoError(t, whole.err)
			got, want := lines(again.stdout, mount), lines(whole.stdout, mount)
			var from int
			_, err = fmt.Sscanf(got[0], "from %d", &from)
			require.NoError(t, err, "%q", got[0])
			assert.Contains(t, []int{kept, kept + 1}, from, "where it went on")
			assert.Equal(t, want[from:], got[1:])
		})
	}
}
