package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKeyOfAKilledRun checks that the key of a killed run stays in a file that only its user can read, and is useless: the next run has
// another target and key, which it removes at its end.
func TestKeyOfAKilledRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	job, err := s.Start(append(s.RunFlags("x", "--size", "64M"), "sh", "-c", "echo data > /nvmecr/a; echo begun; sleep 600"))
	require.NoError(t, err)
	for len(job.Stdout.Lines()) == 0 {
		require.False(t, job.Ended(), "%v", job.Stderr.Lines())
		time.Sleep(time.Millisecond)
	}
	dir := filepath.Join(s.Dir, "state", "nvmecr", "x")
	key := filepath.Join(dir, "run.key")
	first, err := os.ReadFile(key)
	require.NoError(t, err)
	_, err = s.Kill()
	require.NoError(t, err)

	for path, mode := range map[string]os.FileMode{key: 0o600, dir: 0o700 | os.ModeDir} {
		st, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, mode, st.Mode(), path)
	}
	old := filepath.Join(s.Dir, "old")
	require.NoError(t, os.WriteFile(old, first, 0o600))
	r := sh(t, s, s.Nvmecr+" ls && "+s.Nvmecr+" ls --dhchap-secret "+old, "--name", "x")
	assert.Contains(t, r.stdout, "/a")
	assert.NotZero(t, r.code)
	assert.Contains(t, r.stderr, "authentication failed")
	assert.NoFileExists(t, key)
}

// TestNoPlaceForTheRun checks that the application is not started if the directory of the run's sockets cannot be created.
func TestNoPlaceForTheRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a mount namespace takes root")
	}
	if _, err := os.Stat("/var/tmp"); err != nil {
		t.Skip("there is no other place for files of the test than /tmp")
	}
	base, err := os.MkdirTemp("/var/tmp", "nvmecr-e2e")
	require.NoError(t, err)
	defer os.RemoveAll(base)
	t.Setenv("TMPDIR", base)
	s := newStage(t)
	// The program may be below /tmp itself.
	cmd := exec.Command("unshare", "-m", "sh", "-ec", `mount --rbind "$(dirname "$1")" /mnt; mount -t tmpfs none /tmp; mkdir -p "$(dirname "$1")"
mount --bind /mnt "$(dirname "$1")"; mount -o remount,ro /tmp; exec "$@"`, "sh",
		s.Nvmecr, "run", "--size", "64M", "--", "echo", "started")
	cmd.Env, cmd.Dir = s.Environ(), s.Dir
	out, err := cmd.CombinedOutput()
	assert.Error(t, err, "%s", out)
	assert.Contains(t, string(out), "directory of the partition locks")
	assert.NotContains(t, string(out), "started")
}
