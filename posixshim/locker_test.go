package posixshim

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// sharedFile is a file whose locks must be agreed with other processes. It records the calls.
type sharedFile struct {
	vfs.File
	told []told
	err  error // the answer of the other processes
}

// told are the arguments of a call of Lock.
type told struct {
	whole      bool
	start, end int64
	hold       []vfs.Held
}

func (*sharedFile) Ino() microfs.Ino { return 7 }

func (f *sharedFile) Close() error { return nil }

func (f *sharedFile) Lock(whole bool, start, end int64, hold []vfs.Held) error {
	f.told = append(f.told, told{whole, start, end, hold})
	return f.err
}

func (f *sharedFile) Conflict(bool, vfs.Held) (vfs.Held, int, error) {
	return vfs.Held{Start: 3, End: 5, Write: true}, 99, f.err
}

// taken returns the recorded calls since the last call of taken.
func (f *sharedFile) taken() []told {
	list := f.told
	f.told = nil
	return list
}

// TestLocker checks which locks other processes must agree to: the union of the locks of this process, of its open
// files, and of the processes that it serves.
func TestLocker(t *testing.T) {
	const end = math.MaxInt64
	p := new(Process)
	shared := new(sharedFile)
	open := func() (*openFile, Handle) {
		f := &openFile{first: shared}
		f.flags.Store(syscall.O_RDWR)
		f.file.Store(&f.first)
		h, err := p.files.add(f)
		assert.NoError(t, err)
		return f, h
	}
	first, h := open()
	second, other := open()
	lock := func(h Handle, pid int, kind int16, start, n int64) error {
		return p.Lock(h, pid, unix.F_SETLK, bytesOf(&unix.Flock_t{Type: kind, Start: start, Len: n}))
	}
	assert.NoError(t, lock(h, 1, unix.F_RDLCK, 0, 10))
	assert.NoError(t, lock(other, 2, unix.F_RDLCK, 5, 10))
	assert.NoError(t, lock(h, 1, unix.F_WRLCK, 20, 0))
	assert.NoError(t, lock(h, 1, unix.F_UNLCK, 0, 7))
	assert.Equal(t, []told{
		{start: 0, end: 10, hold: []vfs.Held{{Start: 0, End: 10}}}, {start: 5, end: 15, hold: []vfs.Held{{Start: 5, End: 15}}},
		{start: 20, end: end, hold: []vfs.Held{{Start: 20, End: end, Write: true}}}, {start: 0, end: 7, hold: []vfs.Held{{Start: 5, End: 7}}},
	}, shared.taken(), "two that read are one")

	shared.err = syscall.EAGAIN
	assert.Equal(t, syscall.EAGAIN, lock(h, 1, unix.F_WRLCK, 5, 1))
	assert.Empty(t, shared.taken(), "nobody is asked for what is not free here")
	assert.Equal(t, syscall.EAGAIN, lock(other, 2, unix.F_WRLCK, 0, 1))
	assert.Equal(t, []told{{start: 0, end: 1, hold: []vfs.Held{{Start: 0, End: 1, Write: true}}}}, shared.taken())
	shared.err = syscall.EIO
	assert.Equal(t, syscall.EIO, lock(other, 2, unix.F_WRLCK, 12, 1))
	assert.Equal(t, []told{{start: 12, end: 13, hold: []vfs.Held{{Start: 12, End: 13, Write: true}}}, {start: 12, end: 13, hold: []vfs.Held{{Start: 12, End: 13}}}},
		shared.taken(), "what others may have agreed to is taken back")
	assert.Equal(t, syscall.EIO, lock(other, 2, unix.F_UNLCK, 5, 1))
	shared.err = nil
	assert.NoError(t, lock(h, 1, unix.F_WRLCK, 5, 1), "what is given up is given up")
	assert.Equal(t, []told{{start: 5, end: 6}, {start: 5, end: 6, hold: []vfs.Held{{Start: 5, End: 6, Write: true}}}}, shared.taken())

	found := unix.Flock_t{Type: unix.F_WRLCK, Start: 1, Len: 100}
	assert.NoError(t, p.Lock(other, 1, unix.F_GETLK, bytesOf(&found)))
	assert.Equal(t, unix.Flock_t{Type: unix.F_RDLCK, Start: 6, Len: 9, Pid: 2}, found, "what is here comes first")
	p.locks.processEnded(2)
	assert.Equal(t, []told{{end: end, hold: []vfs.Held{{Start: 5, End: 6, Write: true}, {Start: 7, End: 10}, {Start: 20, End: end, Write: true}}}}, shared.taken())
	found = unix.Flock_t{Type: unix.F_WRLCK, Start: 1, Len: 100}
	assert.NoError(t, p.Lock(other, 1, unix.F_GETLK, bytesOf(&found)))
	assert.Equal(t, unix.Flock_t{Type: unix.F_WRLCK, Start: 3, Len: 2, Pid: 99}, found)

	assert.NoError(t, p.Flock(other, unix.LOCK_EX))
	p.locks.fileClosed(second)
	p.locks.descriptorClosed(first, 1)
	p.locks.descriptorClosed(first, 1)
	assert.Equal(t, []told{{whole: true, end: end, hold: []vfs.Held{{Start: 0, End: end, Write: true}}}, {whole: true, end: end}, {end: end}}, shared.taken())
	first.refs.Store(0)
	assert.Equal(t, syscall.EBADF, lock(h, 1, unix.F_RDLCK, 0, 2), "it was closed meanwhile")
	assert.Equal(t, []told{{start: 0, end: 2, hold: []vfs.Held{{Start: 0, End: 2}}}, {end: end}}, shared.taken())
	assert.Zero(t, p.locks.files.Load())
}

// TestTogether checks that overlapping read locks are merged.
func TestTogether(t *testing.T) {
	held := []lock{{owner: 1, start: 30, end: 40, write: true}, {owner: 2, start: 0, end: 10}, {owner: 3, start: 5, end: 7}, {owner: 1, start: 9, end: 20},
		{owner: 3, start: 20, end: 25}}
	assert.Equal(t, []vfs.Held{{Start: 2, End: 20}, {Start: 20, End: 25}, {Start: 30, End: 35, Write: true}}, merged(held, 2, 35))
	assert.Empty(t, merged(held, 25, 30))
}
