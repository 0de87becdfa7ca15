package processfs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/posixshim"
)

// newConfig returns the configuration of a run on a target without a store.
func newConfig(t *testing.T) *config.Config {
	cfg := config.Default()
	cfg.View = config.ViewRank
	cfg.Mount = "/nvmecr"
	cfg.Timeout = 5 * time.Minute // longer than anything takes
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, int64(64*nvmf.MiB)))
	cfg.Targets = []nvmf.TransportID{{Transport: nvmf.File, Address: path}}
	return cfg
}

// newOpener returns the Opener of a process of a job.
func newOpener(t *testing.T, cfg *config.Config, proc store.Proc) *Opener {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	o := &Opener{Config: cfg, Proc: func() (store.Proc, error) { return proc, nil }, Logf: t.Logf}
	o.Process = posixshim.New(o.Open, o.Logf)
	t.Cleanup(func() { assert.NoError(t, o.Process.Finish()) })
	return o
}

// write opens the file system for writing, and writes a file.
func write(t *testing.T, o *Opener, name string) {
	m, err := o.Open(true)
	require.NoError(t, err)
	assert.True(t, m.Writable)
	f, err := m.FS.Open(microfs.RootIno, name, unix.O_CREAT|unix.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = f.WriteAt([][]byte{[]byte(name)}, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, m.Close())
}

// names returns the names in the root of a file system that is opened for reading.
func names(t *testing.T, o *Opener) (list []string) {
	m, err := o.Open(false)
	require.NoError(t, err)
	root, err := m.FS.Open(microfs.RootIno, "/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	entries, err := root.ReadDir("", 0)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name)
	}
	require.NoError(t, root.Close())
	require.NoError(t, m.Close())
	return list
}

// TestOpen checks that a rank has its own files, and a singleton its own and those of all ranks.
func TestOpen(t *testing.T) {
	cfg := newConfig(t)
	ranks := []*Opener{newOpener(t, cfg, store.Proc{Rank: 0, Size: 2}), newOpener(t, cfg, store.Proc{Rank: 1, Size: 2})}
	alone := newOpener(t, cfg, store.Proc{Rank: 0, Size: 1})
	before, err := os.ReadFile(cfg.Targets[0].Address)
	require.NoError(t, err)
	assert.Empty(t, names(t, alone))
	after, err := os.ReadFile(cfg.Targets[0].Address)
	require.NoError(t, err)
	assert.True(t, string(before) == string(after), "reading formats nothing")

	write(t, alone, "script")
	write(t, ranks[0], "zero")
	assert.Empty(t, names(t, ranks[1]), "a rank that reads before it has written")
	write(t, ranks[1], "one")
	for _, tt := range []struct {
		who  *Opener
		want []string
	}{
		{ranks[0], []string{"zero"}},
		{ranks[1], []string{"one"}},
		{alone, []string{"one", "script", "zero"}},
	} {
		assert.ElementsMatch(t, tt.want, names(t, tt.who))
	}
}

// TestOpenWithoutAPlace checks that a process without a known rank has no files.
func TestOpenWithoutAPlace(t *testing.T) {
	o := newOpener(t, newConfig(t), store.Proc{})
	o.Proc = func() (store.Proc, error) { return store.Proc{}, unix.EINVAL }
	_, err := o.Open(true)
	assert.ErrorIs(t, err, unix.EINVAL)
}

// TestMount checks which mounts a process gets, and which it is refused.
func TestMount(t *testing.T) {
	for _, tt := range []struct {
		name, all string
		view      config.View
		err       error
	}{
		{"its own", "", config.ViewRank, nil},
		{"all ranks, too", "/all", config.ViewRank, nil},
		{"all ranks are in the tree", "/all", config.ViewJob, unix.EINVAL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := newConfig(t)
			cfg.MountAll, cfg.View = tt.all, tt.view
			assert.ErrorIs(t, newOpener(t, cfg, store.Proc{Rank: 0, Size: 2}).Mount(), tt.err)
		})
	}
}

// TestOpenAll checks that the mount of all ranks is read-only.
func TestOpenAll(t *testing.T) {
	o := newOpener(t, newConfig(t), store.Proc{Rank: 0, Size: 2})
	_, err := o.openAll(true)
	assert.ErrorIs(t, err, unix.EROFS)
	m, err := o.openAll(false)
	require.NoError(t, err)
	assert.False(t, m.Writable)
	require.NoError(t, m.Close())
}
