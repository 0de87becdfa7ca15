package posixshim

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/vfs"
)

// failingFile is a file whose Sync and Close fail.
type failingFile struct{ vfs.File }

func (failingFile) Sync() error { return syscall.EIO }
func (f failingFile) Close() error {
	_ = f.File.Close()
	return syscall.ENOSPC
}

// failing opens a file whose later calls of fsync and close fail.
func failing(t *testing.T, p *Process) Handle {
	h := file(t, p, "f", create)
	f, err := p.files.get(h)
	require.NoError(t, err)
	var bad vfs.File = failingFile{f.current()}
	f.file.Store(&bad)
	return h
}

// TestFsyncReachesTheFile checks that fsync and close return the errors of the file system.
func TestFsyncReachesTheFile(t *testing.T) {
	p := newPartition(t).process(t)
	h := failing(t, p)
	assert.ErrorIs(t, p.Fsync(h), syscall.EIO)
	assert.ErrorIs(t, p.Release(h), syscall.ENOSPC)
}

// TestCloseTellsItsError checks that the last close of a file with several descriptors returns the error of writing
// its data.
func TestCloseTellsItsError(t *testing.T) {
	p := newPartition(t).process(t)
	h := failing(t, p)
	require.NoError(t, p.Retain(h))
	assert.NoError(t, p.Release(h))
	assert.ErrorIs(t, p.Release(h), syscall.ENOSPC)
}

// TestReadsMoveTheOffset checks that read advances the offset, and that pread does not.
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

// TestUnavailable checks the errno of calls if the mount cannot be opened. Errors that POSIX does not define for
// calls on files must become EIO.
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
