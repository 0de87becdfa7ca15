//go:build !race

package posixshim_test

import (
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPinned checks that the threads of the runtime have a name and do not run on the core to which the application
// is pinned. Threads of the application must stay on that core.
func TestPinned(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("there is one processor")
	}
	out := output(t, newStore(t).command(compile(t, "cc", "pinned.c", "-pthread"), mount+"/file"))
	lines := strings.Split(strings.TrimSpace(out), "\n")
	core := strings.TrimPrefix(lines[0], "pinned to ")
	count := map[string]int{}
	for _, line := range lines[1:] {
		f := strings.Fields(line)
		require.Len(t, f, 3, out)
		count[f[0]+" "+f[1]]++
		if f[1] == "nvmecr" {
			assert.NotEqual(t, core, f[2], out)
			assert.False(t, slices.Contains(strings.Split(f[2], ","), core), out)
		} else {
			assert.Equal(t, core, f[2], out)
		}
	}
	assert.Equal(t, 1, count["parent pinned"], out)
	assert.GreaterOrEqual(t, count["parent nvmecr"], 2, out)
	assert.Equal(t, 1, count["child pinned"], out)
	assert.Zero(t, count["child nvmecr"], "a forked child has no runtime: %s", out)
}

// TestThreadsWithoutSignalStack checks that threads without an alternate signal stack get one before they call Go.
func TestThreadsWithoutSignalStack(t *testing.T) {
	program := compile(t, "gcc", "stackless.c", "-Wall", "-Wextra", "-Werror", "-pthread")
	assert.Equal(t, "0 failed\n", output(t, newStore(t).command(program, mount)))
}

// TestDeepHandlers runs handlers that need more stack than Go's alternate signal stack has.
func TestDeepHandlers(t *testing.T) {
	program := compile(t, "gcc", "deep.c", "-Wall", "-Wextra", "-Werror", "-pthread")
	want := output(t, exec.Command(program, t.TempDir()))
	require.Equal(t, 10, strings.Count(want, "4 written, fsync 0\n"), want)
	assert.Equal(t, want, output(t, newStore(t).command(program, mount)))
}

// TestProfilers checks that each SIGPROF reaches the handler of the profiler.
func TestProfilers(t *testing.T) {
	program := compile(t, "gcc", "profiles.c", "-Wall", "-Wextra", "-Werror", "-pthread")
	want := output(t, exec.Command(program, t.TempDir()))
	assert.Equal(t, strings.Repeat("2000 handled, 0 strange, 0 calls failed\n", 2), want)
	assert.Equal(t, want, output(t, newStore(t).command(program, mount)))
}

// TestNoHandlersWithoutFiles checks that a process that does not use the mount has no handlers, and neither blocks
// nor ignores signals.
func TestNoHandlersWithoutFiles(t *testing.T) {
	signals := func(cmd *exec.Cmd) string {
		_, signals, found := strings.Cut(output(t, cmd), "SigBlk:")
		require.True(t, found)
		signals, _, _ = strings.Cut(signals, "CapInh:")
		return signals
	}
	const status = "/proc/self/status"
	want := signals(exec.Command("cat", status))
	require.Contains(t, want, "SigCgt:\t0000000000000000")
	assert.Equal(t, want, signals(newStore(t).command("cat", status)))
}
