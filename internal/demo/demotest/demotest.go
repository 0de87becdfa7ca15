// Package demotest gives tests the built programs, and a stage to run them on.
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

// build builds everything and returns the directory with the programs.
var build = sync.OnceValues(func() (string, error) {
	// Tests of the benchmark, another module, use this package, too.
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

// Nvmecr returns the path of the command, which is built from the present source, once for all tests of a process.
func Nvmecr(t testing.TB) string {
	t.Helper()
	bin, err := build()
	require.NoError(t, err)
	path := filepath.Join(bin, "nvmecr")
	require.FileExists(t, path)
	return path
}

// Patient returns variables that make waiting ranks sleep instead of spin.
func Patient(t testing.TB) []string {
	t.Helper()
	library := filepath.Join(filepath.Dir(Nvmecr(t)), "libtestyield.so")
	return []string{"OMPI_MCA_mpi_yield_when_idle=1", "LD_PRELOAD=" + library}
}

// NewStage returns a stage for that command until the end of the test. Its waiting ranks sleep.
func NewStage(t testing.TB) *demo.Stage {
	t.Helper()
	stage, err := demo.NewStage(Nvmecr(t))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, stage.Close()) })
	stage.Env = Patient(t)
	return stage
}
