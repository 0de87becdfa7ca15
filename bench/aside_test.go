package bench

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestAside checks that a process which aside starts has one core, and that this process keeps its
// cores.
func TestAside(t *testing.T) {
	var before, after unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	var cores []byte
	require.NoError(t, aside(func() (err error) {
		cores, err = exec.Command("nproc").Output()
		return err
	}))
	assert.Equal(t, "1", strings.TrimSpace(string(cores)))
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	assert.Equal(t, before, after)
	require.ErrorIs(t, aside(func() error { return exec.ErrNotFound }), exec.ErrNotFound)
}
