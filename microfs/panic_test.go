package microfs

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// fragile is a device whose queue panics in Wait while *breaks is set.
type fragile struct {
	nvmf.Device
	breaks *bool
}

func (d fragile) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	q, err := d.Device.OpenQueue(ctx, depth)
	return fragileQueue{q, d.breaks}, err
}

type fragileQueue struct {
	nvmf.Queue
	breaks *bool
}

func (q fragileQueue) Wait(cmds []*nvmf.Command) error {
	if *q.breaks {
		panic("index out of range")
	}
	return q.Queue.Wait(cmds)
}

// TestPanic checks that a panic in the middle of a call, or in the background goroutine, releases the
// lock and puts the file system out of service: later calls fail with EIO.
func TestPanic(t *testing.T) {
	for name, run := range map[string]func(t *testing.T, fs *FS, f *File){
		"a write": func(t *testing.T, _ *FS, f *File) {
			assert.Panics(t, func() { _, _ = f.WriteAt([][]byte{{1}}, 0) })
		},
		"a state checkpoint": func(t *testing.T, fs *FS, _ *File) {
			more, wait := true, time.Duration(0)
			fs.mu.Lock()
			fs.ckpt.state = make([]byte, 1) // as if a state checkpoint was in progress
			fs.mu.Unlock()
			assert.NotPanics(t, func() { more, wait = fs.backgroundTurn() })
			assert.False(t, more)
			assert.Zero(t, wait)
		},
	} {
		t.Run(name, func(t *testing.T) {
			breaks := false
			dev := fragile{memory(t, 16*nvmf.MiB, 4096), &breaks}
			seg := Segment{Length: 16 * nvmf.MiB}
			require.NoError(t, Format(t.Context(), dev, seg, FormatOptions{}))
			fs, err := Mount(t.Context(), dev, seg, Options{})
			require.NoError(t, err)
			f, err := fs.Open(RootIno, "/f", unix.O_CREAT|unix.O_RDWR, 0o600)
			require.NoError(t, err)
			breaks = true
			run(t, fs, f)
			breaks = false
			_, err = f.WriteAt([][]byte{{1}}, 0)
			require.ErrorIs(t, err, syscall.EIO)
			require.ErrorContains(t, err, "internal error")
			_, err = fs.Stat(RootIno, "/f", true)
			require.ErrorIs(t, err, syscall.EIO)
		})
	}
}
