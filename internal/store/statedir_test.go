package store

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
)

func openState(t *testing.T) *StateDir {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	d, err := OpenStateDir("melt")
	require.NoError(t, err)
	return d
}

func TestStateDirPlace(t *testing.T) {
	d := openState(t)
	assert.Equal(t, filepath.Join(os.Getenv("XDG_STATE_HOME"), "nvmecr", "melt"), d.Path)
	st, err := os.Stat(d.Path)
	require.NoError(t, err)
	assert.EqualValues(t, 0o700, st.Mode().Perm())
	assert.True(t, d.Made)
	names, err := StateDirs()
	require.NoError(t, err)
	assert.Empty(t, names, "there is nothing in it yet")
	require.NoError(t, d.Record(config.Default(), true))
	names, err = StateDirs()
	require.NoError(t, err)
	assert.Equal(t, []string{"melt"}, names)
	d, err = OpenStateDir("melt")
	require.NoError(t, err)
	assert.False(t, d.Made)

	t.Setenv("XDG_STATE_HOME", "relative") // to be ignored
	t.Setenv("HOME", t.TempDir())
	names, err = StateDirs()
	require.NoError(t, err)
	assert.Empty(t, names)
	d, err = OpenStateDir("a")
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(os.Getenv("HOME"), ".local/state/nvmecr/a"), d.Path)

	_, err = OpenStateDir("../x")
	require.Error(t, err)
}

// A directory of another user is only read, also by root.
func TestStateDirOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	d := openState(t)
	require.NoError(t, os.Chown(d.Path, 12345, 12345))
	_, err := OpenStateDir("melt")
	require.ErrorIs(t, err, parttable.ErrOtherOwner)
	assert.ErrorContains(t, err, "user 12345")
	entries, err := os.ReadDir(d.Path)
	require.NoError(t, err)
	assert.Empty(t, entries)
	_, err = FindStateDir("melt")
	require.NoError(t, err)
}

func TestRecord(t *testing.T) {
	d := openState(t)
	_, err := d.Load()
	require.ErrorIs(t, err, fs.ErrNotExist)
	cfg := config.Default()
	require.NoError(t, cfg.Set("target", "file:/x"))
	require.NoError(t, cfg.Set("hugeblock", "64K"))
	require.NoError(t, d.Record(cfg, true))
	r, err := d.Load()
	require.NoError(t, err)
	assert.True(t, r.Embedded)
	assert.Equal(t, cfg.Size, r.Size)
	again := config.Default()
	require.NoError(t, again.Adopt(r.Settings))
	assert.Equal(t, cfg.Targets, again.Targets)
	assert.Equal(t, cfg.Hugeblock, again.Hugeblock)
	entries, err := os.ReadDir(d.Path)
	require.NoError(t, err)
	assert.Len(t, entries, 1, "no temporary file is left")

	require.NoError(t, os.WriteFile(filepath.Join(d.Path, "store.json"), []byte("{"), 0o600))
	_, err = d.Load()
	require.ErrorContains(t, err, "remove the file")
	require.NoError(t, d.Remove())
	_, err = os.Stat(d.Path)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// An image that is shorter than it was, or gone, is refused: nobody begins anew over
// what is left of it.
func TestCheckImage(t *testing.T) {
	d := openState(t)
	require.NoError(t, d.CheckImage(), "nothing is known of it")
	cfg := config.Default()
	cfg.Size = 1 << 20
	require.NoError(t, d.Record(cfg, true))
	require.ErrorIs(t, d.CheckImage(), fs.ErrNotExist)
	for size, ok := range map[int64]bool{1<<20 - 1: false, 1 << 20: true, 1<<20 + 1: true} {
		require.NoError(t, os.WriteFile(d.Image(), nil, 0o600))
		require.NoError(t, os.Truncate(d.Image(), size))
		err := d.CheckImage()
		if ok {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "was truncated")
		}
	}
}

// The lock is held as long as any process that inherited it lives.
func TestStateDirLock(t *testing.T) {
	d := openState(t)
	l, err := d.Lock()
	require.NoError(t, err)
	_, err = d.Lock()
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	assert.ErrorIs(t, err, syscall.EBUSY)
	assert.Equal(t, os.Getpid(), locked.PID)

	heir := exec.Command("cat")
	heir.ExtraFiles = []*os.File{l.File}
	in, err := heir.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, heir.Start())
	require.NoError(t, l.SetHolder(heir.Process.Pid))
	require.NoError(t, l.Unlock())
	_, err = d.Lock()
	require.ErrorAs(t, err, &locked)
	assert.Equal(t, heir.Process.Pid, locked.PID)

	require.NoError(t, in.Close())
	require.NoError(t, heir.Wait())
	l, err = d.Lock()
	require.NoError(t, err)

	// A lock of a directory that was removed meanwhile is no lock.
	require.NoError(t, d.Remove())
	second, err := d.Lock()
	require.ErrorIs(t, err, fs.ErrNotExist, "the directory is gone")
	require.Nil(t, second)
	require.NoError(t, l.Unlock())
}

// A record that differs in its time only need not be written.
func TestSameRecord(t *testing.T) {
	one := Record{Embedded: true, Size: 1, Settings: map[string]string{"target": "a", "log": "info"}}
	two := Record{Embedded: true, Size: 1, Settings: map[string]string{"target": "b", "log": "info"}, Time: time.Now()}
	assert.True(t, one.same(&two), "where the embedded target listened does not matter")
	two.Settings["log"] = "error"
	assert.False(t, one.same(&two))
	two.Settings["log"] = "info"
	one.Embedded, two.Embedded = false, false
	assert.False(t, one.same(&two))
}
