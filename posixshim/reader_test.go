package posixshim

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// TestReadingDoesNotOpenForWriting checks that calls that only read open the partition for reading.
func TestReadingDoesNotOpenForWriting(t *testing.T) {
	part := newPartition(t)
	first := part.process(t)
	h := file(t, first, "f", create)
	_, err := first.Write(h, []byte("content"), NoLimit)
	require.NoError(t, err)
	require.NoError(t, first.Finish())

	part.opened = nil
	p := part.process(t)
	_, err = p.Attr(at("f"), 0)
	require.NoError(t, err)
	r := file(t, p, "f", syscall.O_RDONLY)
	d := file(t, p, ".", syscall.O_RDONLY)
	require.NoError(t, p.Fsync(r))
	assert.Equal(t, []string{"read"}, part.opened)

	// The first change opens the partition for writing. Open files are then files of the new mount.
	buf := make([]byte, 3)
	_, err = p.Read(r, buf)
	require.NoError(t, err)
	require.NoError(t, p.Mkdir(at("d"), 0o700))
	assert.Equal(t, []string{"read", "write"}, part.opened)
	_, err = p.Read(r, buf)
	require.NoError(t, err)
	assert.Equal(t, "ten", string(buf))
	assert.Equal(t, []string{".", "..", "d", "f"}, names(t, p, d, 4096))
	assert.Empty(t, part.logged)
}

// TestReaderKeepsItsMount checks that the partition is mounted again for reading only if it has changed.
func TestReaderKeepsItsMount(t *testing.T) {
	part := newPartition(t)
	writer := part.process(t)
	require.NoError(t, writer.Mkdir(at("d"), 0o700))
	part.opened = nil
	p := part.process(t)
	look := func() error {
		p.mounts[0].opened = time.Time{} // as if the mount were old
		_, err := p.Attr(at("d/e"), 0)
		return err
	}
	for range 3 {
		require.ErrorIs(t, look(), syscall.ENOENT)
	}
	assert.Equal(t, []string{"read"}, part.opened)
	require.NoError(t, writer.Mkdir(at("d/e"), 0o700))
	for range 3 {
		require.NoError(t, look())
	}
	assert.Equal(t, []string{"read", "read"}, part.opened)
	p.mounts[0].maxAge = 0
	require.NoError(t, look())
	assert.GreaterOrEqual(t, p.mounts[0].maxAge, defaultMaxAge, "it does not look all the time")
}

// TestYield checks when a process gives up the partition for another process.
func TestYield(t *testing.T) {
	part := newPartition(t)
	p := part.process(t)
	assert.False(t, p.Yield(), "there is nothing to give")
	require.NoError(t, p.Mkdir(at("d"), 0o700))
	h := file(t, p, "f", create)
	assert.False(t, p.Yield(), "a file is open")
	require.NoError(t, p.Release(h))
	assert.True(t, p.Yield())
	assert.False(t, p.Yield(), "it is given up already")
	_, err := p.Attr(at("d"), 0)
	require.NoError(t, err, "opened again when needed")
	assert.Equal(t, []string{"write", "read"}, part.opened)
	assert.False(t, p.Yield(), "a reader has nothing to give")
	require.NoError(t, p.OpenForWriting())
	assert.False(t, p.Yield(), "MPI_Init keeps it")
}

// TestOpenFilesInTree checks that, in the tree of a job, a file that another process has removed stays open when this
// process opens the partition for writing.
func TestOpenFilesInTree(t *testing.T) {
	one, err := newPartition(t).open(true)
	require.NoError(t, err)
	f, err := one.FS.Open(microfs.RootIno, "/f", create, 0o600)
	require.NoError(t, err)
	_, err = f.WriteAt([][]byte{[]byte("bytes")}, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	p := New(func(write bool) (*vfs.Mount, error) {
		return &vfs.Mount{FS: one.FS, Writable: write, Tree: true, Close: func() error { return nil }}, nil
	}, t.Logf)
	read := file(t, p, "f", syscall.O_RDONLY)
	require.NoError(t, one.FS.Unlink(microfs.RootIno, "/f"))
	require.NoError(t, p.Mkdir(at("d"), 0o700))
	b := make([]byte, 5)
	n, err := p.Read(read, b)
	require.NoError(t, err)
	assert.Equal(t, "bytes", string(b[:n]))
	require.NoError(t, p.Release(read))
	require.NoError(t, p.Finish())
	require.NoError(t, one.Close())
}

// TestReaderSeesWhatAnotherWrites checks a shell with its working directory in the mount. It must see files that a
// command of it has written.
func TestReaderSeesWhatAnotherWrites(t *testing.T) {
	part := newPartition(t)
	shell := part.process(t)
	require.NoError(t, shell.Mkdir(at("d"), 0o700))
	require.NoError(t, shell.Release(file(t, shell, "d/log", create)))
	cwd := file(t, shell, "d", syscall.O_RDONLY|syscall.O_DIRECTORY)
	log := file(t, shell, "d/log", syscall.O_RDONLY)
	require.True(t, shell.Yield(), "what is open is only read")

	command := part.process(t)
	h := file(t, command, "d/log", syscall.O_WRONLY)
	_, err := command.Write(h, []byte("line\n"), NoLimit)
	require.NoError(t, err)
	require.NoError(t, command.Release(h))
	require.NoError(t, command.Release(file(t, command, "d/new", create)))

	shell.mounts[0].opened = time.Time{} // some time later
	_, err = shell.Attr(PathAt{cwd, "new"}, 0)
	require.NoError(t, err)
	shell.mounts[0].opened = time.Time{}
	buf := make([]byte, 10)
	n, err := shell.Read(log, buf)
	require.NoError(t, err)
	assert.Equal(t, "line\n", string(buf[:n]))
	assert.Equal(t, []string{".", "..", "log", "new"}, names(t, shell, cwd, 4096))

	require.True(t, command.Yield())
	require.NoError(t, shell.Unlink(PathAt{cwd, "new"}), "and back again")
}

// TestUnlinkedFileIsNotGivenUp checks that a process keeps the partition while it has an unlinked file open.
func TestUnlinkedFileIsNotGivenUp(t *testing.T) {
	p := newPartition(t).process(t)
	require.NoError(t, p.Release(file(t, p, "f", create)))
	h := file(t, p, "f", syscall.O_RDONLY)
	require.NoError(t, p.Unlink(at("f")))
	assert.False(t, p.Yield())
	require.NoError(t, p.Release(h))
	assert.True(t, p.Yield())
}
