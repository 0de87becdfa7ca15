package microfs

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestCurrent checks that a mounted reader can tell, without mounting again, whether another mount
// would show a different state.
func TestCurrent(t *testing.T) {
	dev := memory(t, 64*nvmf.MiB, 4096)
	ctx, seg := context.Background(), Segment{Length: 64 * nvmf.MiB}
	require.NoError(t, Format(ctx, dev, seg, FormatOptions{}))
	fs, err := Mount(ctx, dev, seg, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, fs.Unmount()) })
	f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	piece := [][]byte{bytes.Repeat([]byte{1}, 100_000)}
	write := func() error { _, err := f.WriteAt(piece, 0); return err }
	mode := uint32(0o640)
	yes := func(nvmf.Queue) bool { return true }

	for _, tt := range []struct {
		name   string
		change func() error
	}{
		{"a write", write},
		{"the same again", write},
		{"a small append", func() error { _, _, err := f.Append([][]byte{{2}}); return err }},
		{"mode", func() error { return f.SetAttr(SetAttr{Mode: &mode}) }},
		{"truncate", func() error { return f.Truncate(5) }},
		{"mkdir", func() error { return fs.Mkdir(RootIno, "d", 0o700) }},
		{"rename", func() error { return fs.Rename(RootIno, "f", RootIno, "d/f", 0) }},
		{"a state checkpoint", func() error { return fs.Checkpoint() }},
		{"the first write behind it", write},
		{"many files", func() error { return createMany(fs, 1000) }},
		{"another one behind that", func() error { return createMany(fs, 1) }},
		{"unlink", func() error { return fs.Unlink(RootIno, "d/f") }},
		{"a mount for writing", func() error {
			err := firstError(f.Close(), fs.Unmount())
			if err == nil {
				fs, err = Mount(ctx, dev, seg, Options{})
			}
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Mount(ctx, dev, seg, Options{ReadOnly: true})
			require.NoError(t, err)
			defer r.Unmount()
			for range 2 {
				require.True(t, r.Current(yes), "nothing has happened")
			}
			assert.False(t, r.Current(func(nvmf.Queue) bool { return false }), "the caller knows better")
			require.NoError(t, tt.change())
			assert.False(t, r.Current(yes))
			assert.False(t, fs.Current(yes), "a writer knows itself")
		})
	}
}

// createMany creates n new files.
func createMany(fs *FS, n int) error {
	for i := range n {
		f, err := fs.Open(RootIno, fmt.Sprintf("%d.%d", n, i), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestCurrentOutOfService checks that Current is false after Unmount.
func TestCurrentOutOfService(t *testing.T) {
	dev := memory(t, 64*nvmf.MiB, 4096)
	ctx, seg := context.Background(), Segment{Length: 64 * nvmf.MiB}
	require.NoError(t, Format(ctx, dev, seg, FormatOptions{}))
	r, err := Mount(ctx, dev, seg, Options{ReadOnly: true})
	require.NoError(t, err)
	require.True(t, r.Current(func(nvmf.Queue) bool { return true }))
	require.NoError(t, r.Unmount())
	assert.False(t, r.Current(func(nvmf.Queue) bool { return true }))
}
