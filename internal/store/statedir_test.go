package store

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
)

func openState(t *testing.T) *StateDir {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	d, err := OpenStateDir("melt")
	require.NoError(t, err)
	return d
}

// TestStateDirPlace checks the path and mode of a state directory, and which directories are listed.
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

// TestStateDirOfAnotherUser checks that the state directory of another user can only be read, also by root.
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

// TestRecord checks that a record can be written, loaded and removed, and the error for a damaged one.
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

// TestCheckImage checks that an image that is missing, or shorter than in the last run, is refused. Otherwise a run
// would format the store again and overwrite the rest of its data.
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

// TestStateDirLock checks that the lock is held until every process that inherited it has ended, and that the error
// names the holder.
func TestStateDirLock(t *testing.T) {
	d := openState(t)
	l, err := d.Lock()
	require.NoError(t, err)
	_, err = d.Lock()
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	assert.ErrorIs(t, err, syscall.EBUSY)
	me := self(uuid.Nil)
	me.Machine = uuid.Nil // the lock file does not have it
	assert.Equal(t, me, locked.Holder)
	assert.ErrorContains(t, err, fmt.Sprintf("process %d of host %s;", me.PID, me.Host))
	assert.False(t, locked.Outlived())

	heir := exec.Command("cat")
	heir.ExtraFiles = []*os.File{l.File}
	in, err := heir.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, heir.Start())
	gone := exec.Command("true")
	require.NoError(t, gone.Run())
	_, err = l.File.WriteAt(fmt.Appendf(nil, holderFormat, gone.Process.Pid, me.Start, me.Boot, me.PIDSpace, me.Host), 0)
	require.NoError(t, err)
	require.NoError(t, l.Unlock())
	_, err = d.Lock()
	require.ErrorAs(t, err, &locked)
	assert.True(t, locked.Outlived(), "the heir has the lock")
	for name, line := range map[string]string{
		"of another host":       fmt.Sprintf(holderFormat, gone.Process.Pid, me.Start, uuid.New(), me.PIDSpace, "node7"),
		"of another container":  fmt.Sprintf(holderFormat, gone.Process.Pid, me.Start, me.Boot, me.PIDSpace+1, me.Host),
		"of an earlier version": fmt.Sprintf("%-10d\n", gone.Process.Pid),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(d.Path, "lock"), []byte(line), 0o600))
		_, err = d.Lock()
		require.ErrorAs(t, err, &locked)
		assert.EqualValues(t, gone.Process.Pid, locked.Holder.PID, name)
		assert.False(t, locked.Outlived(), "a process %s is not known to have ended", name)
	}

	require.NoError(t, in.Close())
	require.NoError(t, heir.Wait())
	l, err = d.Lock()
	require.NoError(t, err)

	// Lock fails if the directory was removed.
	require.NoError(t, d.Remove())
	second, err := d.Lock()
	require.ErrorIs(t, err, fs.ErrNotExist, "the directory is gone")
	require.Nil(t, second)
	require.NoError(t, l.Unlock())
}

// TestLockRecord checks that a shorter line replaces all of a longer record of another version. A reader must use
// only the first line, since the rest may not be truncated yet.
func TestLockRecord(t *testing.T) {
	d := openState(t)
	path := filepath.Join(d.Path, "lock")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("4711 ", 100)), 0o600))
	l, err := d.Lock()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Unlock()) })
	me := self(uuid.Nil)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf(holderFormat, me.PID, me.Start, me.Boot, me.PIDSpace, me.Host), string(b))

	require.NoError(t, os.WriteFile(path, []byte("12 34\n 56 7 node7\n"), 0o600))
	_, err = d.Lock()
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	assert.Equal(t, microfs.Holder{PID: 12, Start: 34}, locked.Holder)
}

// TestSameRecord checks that records count as equal if only their times differ, or the address of the embedded
// target.
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
