// Package demotest gives tests what is built, and a stage to run it on.
package demotest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// build makes everything and returns the directory it is in.
var build = sync.OnceValues(func() (string, error) {
	// Tests of the benchmark, another module, ask too.
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "nvmecr").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m nvmecr: %w", err)
	}
	root := strings.TrimSpace(string(dir))
	// Under make it has just been built.
	if os.Getenv("MAKELEVEL") == "" {
		if out, err := exec.Command("make", "-s", "-C", root, "all").CombinedOutput(); err != nil {
			return "", fmt.Errorf("make all: %w\n%s", err, out)
		}
	}
	return filepath.Join(root, "bin"), nil
})

// Nvmecr returns the path of the command. It and all that it needs are built from
// what is here now, once for all tests of a process.
func Nvmecr(t testing.TB) string {
	t.Helper()
	bin, err := build()
	require.NoError(t, err)
	path := filepath.Join(bin, "nvmecr")
	require.FileExists(t, path)
	return path
}

// Patient is the environment of ranks that keep no process from a core while they wait.
func Patient(t testing.TB) []string {
	t.Helper()
	library := filepath.Join(filepath.Dir(Nvmecr(t)), "libtestyield.so")
	return []string{"OMPI_MCA_mpi_yield_when_idle=1", "LD_PRELOAD=" + library}
}

// NewStage makes a stage for that command, which ends with the test. Its ranks are patient.
func NewStage(t testing.TB) *demo.Stage {
	t.Helper()
	stage, err := demo.NewStage(Nvmecr(t))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, stage.Close()) })
	stage.Env = Patient(t)
	return stage
}
