package microfs

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// hooked is a device that calls a hook before commands are submitted, on the thread of the caller,
// with the number of bytes that the commands transfer.
type hooked struct {
	nvmf.Device
	tell *hook
}

func (d hooked) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	q, err := d.Device.OpenQueue(ctx, depth)
	return hookedQueue{q, d.tell}, err
}

type hookedQueue struct {
	nvmf.Queue
	tell *hook
}

func (q hookedQueue) Submit(cmds []*nvmf.Command) {
	var n nvmf.Bytes
	for _, c := range cmds {
		n += c.Length()
	}
	if f := q.tell.Load(); f != nil {
		(*f)(n)
	}
	q.Queue.Submit(cmds)
}

// hook is the function that a hooked device calls, if it is set. Goroutines of the file system call
// it, too, so it is set and read atomically.
type hook struct {
	atomic.Pointer[func(n nvmf.Bytes)]
}

func (h *hook) set(f func(n nvmf.Bytes)) { h.Store(&f) }

// onHooked formats and mounts a file system on a hooked device.
func onHooked(t *testing.T, size nvmf.Bytes, o Options) (*FS, *hook) {
	hook := new(hook)
	dev := hooked{memory(t, size, 4096), hook}
	seg := Segment{Length: size}
	require.NoError(t, Format(t.Context(), dev, seg, FormatOptions{}))
	fs, err := Mount(t.Context(), dev, seg, o)
	require.NoError(t, err)
	t.Cleanup(func() { hook.Store(nil); _ = fs.Unmount() })
	return fs, hook
}

// waitInLine returns when another goroutine waits for the lock, which the caller holds.
func waitInLine(fs *FS) {
	for fs.mu.next.TryLock() {
		fs.mu.next.Unlock()
		runtime.Gosched()
	}
}

// TestLargeGivesWay checks that a call during a large read or write waits for no more than one of its
// operations of up to 8 MiB, and that the bytes read and written are right all the same.
func TestLargeGivesWay(t *testing.T) {
	const size = 40 << 20
	want := pattern(size, 3)
	for name, run := range map[string]func(f *File) (int, error){
		"write": func(f *File) (int, error) { return f.WriteAt([][]byte{want}, 0) },
		"append": func(f *File) (int, error) {
			n, end, err := f.Append([][]byte{want})
			assert.EqualValues(t, size, end)
			return n, err
		},
		"read": func(f *File) (int, error) {
			got := make([]byte, size)
			n, err := f.ReadAt([][]byte{got}, 0)
			assert.True(t, bytes.Equal(want, got))
			return n, err
		},
	} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, writing behind %v", name, behind), func(t *testing.T) {
				fs, hook := onHooked(t, 256*nvmf.MiB, Options{WriteBehind: behind})
				f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
				require.NoError(t, err)
				small, err := fs.Open(RootIno, "small", unix.O_CREAT|unix.O_RDWR, 0o600)
				require.NoError(t, err)
				if name == "read" {
					_, err := f.WriteAt([][]byte{want}, 0)
					require.NoError(t, err)
				}
				var others sync.WaitGroup
				var moved nvmf.Bytes
				var waiters int64
				hook.set(func(n nvmf.Bytes) {
					if n = n.AlignDown(64 * nvmf.KiB); n == 0 { // a command of a small write, or a log image
						return
					}
					if moved += n; moved <= nvmf.Bytes(waiters)*maxBatch {
						return
					}
					in, _ := fs.tree.lookup(RootIno, "small")
					assert.Equal(t, waiters, fs.size(in), "who waited for the operation before has had his turn")
					off := waiters
					waiters++
					others.Go(func() {
						_, err := small.WriteAt([][]byte{{7}}, off)
						assert.NoError(t, err)
					})
					waitInLine(fs)
				})
				n, err := run(f)
				others.Wait()
				hook.Store(nil)
				require.NoError(t, err)
				require.Equal(t, size, n)
				require.Equal(t, int64(size/maxBatch), waiters)
				got := make([]byte, size)
				_, err = f.ReadAt([][]byte{got}, 0)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got))
			})
		}
	}
}

// TestLargeWriteIsOne checks that changes of the file by other calls take effect before or after a large
// write, never between its operations, and that Close waits for the write.
func TestLargeWriteIsOne(t *testing.T) {
	const size = 20 << 20
	large := pattern(size, 3)
	small := pattern(1000, 9)
	for name, c := range map[string]struct {
		other func(f, same *File) error
		want  []byte
	}{
		"append": {func(_, f *File) error {
			_, end, err := f.Append([][]byte{small})
			if err == nil && end != size+1000 {
				err = fmt.Errorf("appended up to %d", end)
			}
			return err
		}, append(bytes.Clone(large), small...)},
		"write": {func(_, f *File) error {
			_, err := f.WriteAt([][]byte{small}, size-500)
			return err
		}, append(bytes.Clone(large[:size-500]), small...)},
		"truncate": {func(_, f *File) error { return f.Truncate(5) }, large[:5]},
		"punch":    {func(_, f *File) error { return f.Punch(5, size) }, append(bytes.Clone(large[:5]), make([]byte, size-5)...)},
		"close":    {func(f, _ *File) error { return f.Close() }, large},
	} {
		t.Run(name, func(t *testing.T) {
			fs, hook := onHooked(t, 256*nvmf.MiB, Options{})
			f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
			require.NoError(t, err)
			same, err := fs.Open(RootIno, "f", unix.O_RDWR, 0)
			require.NoError(t, err)
			done := make(chan error)
			began := false
			hook.set(func(n nvmf.Bytes) {
				if !began && n >= nvmf.MiB {
					began = true
					go func() { done <- c.other(f, same) }()
					waitInLine(fs)
				}
			})
			_, end, err := f.Append([][]byte{large})
			require.NoError(t, err)
			require.EqualValues(t, size, end)
			require.NoError(t, <-done)
			got := make([]byte, len(c.want)+1)
			n, err := same.ReadAt([][]byte{got}, 0)
			require.NoError(t, err)
			require.Equal(t, len(c.want), n)
			require.True(t, bytes.Equal(c.want, got[:n]))
		})
	}
}

// TestLargeReadOfCutFile checks that a large read ends at the new end of the file if the file is
// truncated during the read.
func TestLargeReadOfCutFile(t *testing.T) {
	const size = 20 << 20
	fs, hook := onHooked(t, 256*nvmf.MiB, Options{})
	f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	large := pattern(size, 3)
	_, err = f.WriteAt([][]byte{large}, 0)
	require.NoError(t, err)
	done := make(chan error)
	began := false
	hook.set(func(n nvmf.Bytes) {
		if !began && n >= nvmf.MiB {
			began = true
			go func() { done <- f.Truncate(9 << 20) }()
			waitInLine(fs)
		}
	})
	got := make([]byte, size)
	n, err := f.ReadAt([][]byte{got}, 0)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.Equal(t, 9<<20, n)
	require.True(t, bytes.Equal(large[:n], got[:n]))
}
