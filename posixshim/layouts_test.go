//go:build !race

package posixshim_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLayoutsOfGlibc checks the layouts of streams and directories of the C library that the preloaded library
// depends on.
func TestLayoutsOfGlibc(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(name, make([]byte, 8<<10), 0o600))
	assert.Empty(t, output(t, exec.Command(compile(t, "gcc", "layouts.c", "-Wall", "-Wextra", "-Werror"), name)))
}

// TestNoPreemption checks that the link flags of the runtimes keep Go from sending signals to its threads.
func TestNoPreemption(t *testing.T) {
	rules, err := os.ReadFile("shim.mk")
	require.NoError(t, err)
	flag := regexp.MustCompile(`-X=runtime\.godebugDefault=[^"]+`)
	program := filepath.Join(t.TempDir(), "preempt")
	out, err := exec.Command("go", "build", "-ldflags", string(flag.Find(rules)), "-o", program, "testdata/preempt.go").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "true\n", output(t, exec.Command(program)))
}
