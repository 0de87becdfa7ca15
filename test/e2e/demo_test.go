package e2e

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
	"nvmecr/internal/demo/demotest"
)

// TestDemo runs the demonstration with a smaller job.
func TestDemo(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("lmp"); err != nil {
		t.Skip("LAMMPS (lmp) is not installed: make deps")
	}
	command := demotest.Nvmecr(t)
	seed := time.Now().UnixNano() % 1_000_000
	ctx, cancel := context.WithTimeout(t.Context(), 2*hang)
	defer cancel()
	var out demo.Output
	err := demo.Run(ctx, &out, demo.Options{Nvmecr: command, Seed: seed, Brief: true, Env: demotest.Patient(t)})
	require.NoError(t, err, out.Tail(100))
	t.Log(out.Tail(100))
}
