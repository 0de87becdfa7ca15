//go:build interop

package interop

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/test/interop/guest"
)

// limit is the time limit of a script or program; a guest without KVM on a busy machine is slow.
const limit = 10 * time.Minute

// kernels returns the installed kernels. Without any it returns a placeholder, so that the tests are reported as skipped.
func kernels(t *testing.T) []guest.Kernel {
	all, err := guest.Kernels("../../build/kernels")
	require.NoError(t, err)
	for _, name := range []string{"system", "backports"} {
		have := false
		for _, k := range all {
			have = have || k.Name == name
		}
		if !have {
			all = append(all, guest.Kernel{Name: name})
		}
	}
	return all
}

// forKernels runs a test with every kernel.
func forKernels(t *testing.T, test func(t *testing.T, k guest.Kernel)) {
	for _, k := range kernels(t) {
		t.Run(kernelName(k), func(t *testing.T) { test(t, k) })
	}
}

func kernelName(k guest.Kernel) string {
	if k.Version == "" {
		return "Linux " + k.Name
	}
	return "Linux " + k.Version
}

// boot starts a guest until the end of the test.
func boot(t *testing.T, o guest.Options) *guest.Guest {
	t.Helper()
	if o.Kernel.Version == "" {
		t.Skipf("the kernel %q could not be had; see what scripts/kernels.sh says", o.Kernel.Name)
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("QEMU is not installed: make interop")
	}
	for _, p := range append([]string{"busybox"}, o.Programs...) {
		if guest.Find(p) == "" {
			t.Skipf("%s is not installed: make interop", p)
		}
	}
	g, err := guest.Start(t.Context(), t.TempDir(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("The last of the guest's console:\n" + g.Console())
		}
		assert.NoError(t, g.Close())
	})
	return g
}

// sh runs a script in a guest, which must succeed, and returns its output.
func sh(t *testing.T, g *guest.Guest, format string, args ...any) string {
	t.Helper()
	script := fmt.Sprintf(format, args...)
	r := try(t, g, script)
	require.NoError(t, r.Err(), script)
	return r.Stdout
}

// try runs a script in a guest.
func try(t *testing.T, g *guest.Guest, script string) guest.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := g.Run(ctx, script)
	require.NoError(t, err, "%s\n%s", script, g.Console())
	return r
}

// shortest cuts a long output for a message.
func shortest(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
