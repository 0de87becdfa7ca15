package posixshim

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/vfs"
)

// failingFile is a file whose device fails.
type failingFile struct{ vfs.File }

func (failingFile) Sync() error { return syscall.EIO }
func (f failingFile) Close() error {
	_ = f.File.Close()
	return syscall.ENOSPC
}

// failing opens a file that fails from then on.
func failing(t *testing.T, p *Process) Handle {
	h := file(t, p, "f", create)
	f, err := p.files.get(h)
	require.NoError(t, err)
	var bad vfs.File = failingFile{f.current()}
	f.file.Store(&bad)
	return h
}

// TestFsyncReachesTheFile: fsync returns the error of the file system.
func TestFsyncReachesTheFile(t *testing.T) {
	p := newPartition(t).process(t)
	h := failing(t, p)
	assert.ErrorIs(t, p.Fsync(h), syscall.EIO)
	assert.ErrorIs(t, p.Release(h), syscall.ENOSPC)
}

// TestCloseTellsItsError: the last close returns the error of writing the data, also if the file had several descriptors.
func TestCloseTellsItsError(t *testing.T) {
	p := newPartition(t).process(t)
	h := failing(t, p)
	require.NoError(t, p.Retain(h))
	assert.NoError(t, p.Release(h))
	assert.ErrorIs(t, p.Release(h), syscall.ENOSPC)
}

// TestReadsMoveTheOffset: read advances the offset, and pread does not.
func TestReadsMoveTheOffset(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	_, err := p.Pwrite(h, []byte("abcdef"), 0, NoLimit)
	require.NoError(t, err)
	for _, want := range []string{"ab", "cd", "ef", ""} {
		got := make([]byte, 2)
		n, err := p.Read(h, got)
		require.NoError(t, err)
		assert.Equal(t, want, string(got[:n]))
		_, err = p.Pread(h, got, 0)
		require.NoError(t, err)
		assert.Equal(t, "ab", string(got))
	}
}

// TestUnavailable: if a mount cannot be opened, errors that no call on a file has become EIO.
func TestUnavailable(t *testing.T) {
	for cause, want := range map[error]syscall.Errno{
		syscall.ENOENT: syscall.EIO, syscall.EACCES: syscall.EIO, syscall.ECONNREFUSED: syscall.EIO, syscall.EHOSTUNREACH: syscall.EIO, syscall.EPIPE: syscall.EIO,
		syscall.ENOSPC: syscall.ENOSPC, syscall.EROFS: syscall.EROFS, syscall.EBUSY: syscall.EBUSY,
	} {
		p := New(func(bool) (*vfs.Mount, error) { return nil, fmt.Errorf("opening: %w", cause) }, func(string, ...any) {})
		p.MountAt("/nvmecr")
		err := p.Mkdir(at("d"), 0o700)
		assert.Equal(t, want, p.Errno(err), cause)
		assert.ErrorContains(t, err, cause.Error())
	}
}
