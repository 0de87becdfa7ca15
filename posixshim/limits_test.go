package posixshim_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a process may do that has a limit for the size of its files (ulimit -f).
func TestFileSizeLimit(t *testing.T) {
	program := compile(t, "gcc", "fsize.c", "-Wall", "-Wextra", "-Werror", "-pthread")
	want := output(t, exec.Command(program, t.TempDir()))
	require.Contains(t, want, "EFBIG SIGXFSZ\n")
	// The kernel does not let a process with such a limit write to a large file, such as a namespace.
	assert.Empty(t, diff(t, want, output(t, newStore(t).overTCP().command(program, mount))))
}

// Files that posix_spawn opens for a program.
func TestSpawnOpens(t *testing.T) {
	program := compile(t, "gcc", "spawns.c", "-Wall", "-Wextra", "-Werror", "-pthread")
	want := output(t, exec.Command(program, t.TempDir()))
	require.Contains(t, want, "input: spawned, status 0\n")
	assert.Empty(t, diff(t, want, output(t, newStore(t).command(program, mount))))
}
