package command

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/nvmf"
)

func TestCheckTarget(t *testing.T) {
	cfg := config.Default()
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, exec.Command("truncate", "-s", "64M", path).Run())
	for address, want := range map[string]finding{
		path:                     {State: findingPoor, Found: "64 MiB"},
		filepath.Join(path, "x"): {State: findingMissing, Found: "not a directory"},
	} {
		f := checkTarget(t.Context(), cfg, nvmf.TransportID{Transport: nvmf.File, Address: address})
		assert.Equal(t, want.State, f.State)
		assert.Contains(t, f.Found, want.Found)
		assert.NotEmpty(t, f.Remedy)
	}
}

// TestCheckStatus checks that the exit status depends on missing items, not on poor ones.
func TestCheckStatus(t *testing.T) {
	for state, fails := range map[string]bool{findingOK: false, findingPoor: false, findingMissing: true} {
		var out bytes.Buffer
		err := (&hostCheckOptions{}).print(&out, []finding{newFinding("a", "b\nc").problem(state, "do this")})
		assert.Equal(t, fails, err != nil, state)
		assert.Equal(t, 1, strings.Count(out.String(), "\n"))
	}
}

func TestCheckAddresses(t *testing.T) {
	for limit, want := range map[uint64]string{unix.RLIM_INFINITY: findingOK, 4 << 30: findingOK, 1 << 30: findingMissing} {
		assert.Equal(t, want, checkAddresses(limit, nil).State, limit)
	}
	limit, err := limitOf(unix.RLIMIT_NOFILE)
	require.NoError(t, err)
	assert.Positive(t, limit)
}
