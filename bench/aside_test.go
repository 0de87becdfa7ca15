package bench

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestAside checks that a process which aside starts has half of the cores, and that this process keeps its
// cores.
func TestAside(t *testing.T) {
	var before, after unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	var cores []byte
	require.NoError(t, aside(func() (err error) {
		cores, err = exec.Command("nproc").Output()
		return err
	}))
	assert.Equal(t, strconv.Itoa(max(1, before.Count()/2)), strings.TrimSpace(string(cores)))
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	assert.Equal(t, before, after)
	require.ErrorIs(t, aside(func() error { return exec.ErrNotFound }), exec.ErrNotFound)
}

// TestBeside checks that an application beside other processes has a core to spare, and that its
// ranks together write a checkpoint of the usual size.
func TestBeside(t *testing.T) {
	e := &Env{Ranks: 4, Size: 128 * nvmf.MiB, Transfer: nvmf.MiB}
	o := e.beside()
	assert.LessOrEqual(t, o.Ranks, max(1, cores()-cores()/2-1))
	assert.LessOrEqual(t, nvmf.Bytes(o.Ranks)*o.Size, e.Size)
	assert.Equal(t, 4, e.Ranks)
	assert.Equal(t, nvmf.MiB, (&Env{Ranks: 1, Size: nvmf.MiB, Transfer: nvmf.MiB}).beside().Size)
}
