package filedev_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/filedev"
)

// inMemory returns a directory on tmpfs.
func inMemory(t *testing.T) string {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skip("/dev/shm is not in memory (tmpfs)")
	}
	dir, err := os.MkdirTemp("/dev/shm", "filedev")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// allocated returns the allocated size of a file in bytes.
func allocated(t *testing.T, path string) int64 {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Blocks * 512
}

// TestSparseInMemory checks that a file on tmpfs allocates memory for writes and not
// for reads, and that Deallocate frees it.
func TestSparseInMemory(t *testing.T) {
	path := filepath.Join(inMemory(t), "ns")
	d, err := filedev.Create(path, 64*nvmf.MiB+4096, filedev.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	got := make([]byte, nvmf.MiB)
	read := func(lba nvmf.LBA) []byte {
		require.NoError(t, run(t, d, &nvmf.Command{Opcode: nvmf.Read, LBA: lba, Blocks: 256, Data: [][]byte{got}}))
		return got
	}
	assert.Equal(t, make([]byte, nvmf.MiB), read(256))
	assert.Zero(t, allocated(t, path), "reading a sparse file allocated memory")

	last := nvmf.LBA(64 * 256) // the block after the last whole chunk
	want := bytes.Repeat([]byte("x"), 4096)
	for _, lba := range []nvmf.LBA{300, last} {
		require.NoError(t, run(t, d, &nvmf.Command{Opcode: nvmf.Write, LBA: lba, Blocks: 1, Data: [][]byte{want[:100], want[100:]}}))
	}
	assert.LessOrEqual(t, allocated(t, path), int64(65<<10+4096))
	assert.Equal(t, want, read(256)[44*4096:45*4096])
	kernel, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, want, kernel[300*4096:301*4096], "read by a system call")
	assert.Equal(t, want, kernel[last*4096:])

	require.NoError(t, run(t, d, &nvmf.Command{Opcode: nvmf.Deallocate, LBA: 256, Blocks: 256}))
	assert.LessOrEqual(t, allocated(t, path), int64(4096))
	assert.Equal(t, make([]byte, nvmf.MiB), read(256))
	read(300) // crosses the border between two chunks
	assert.LessOrEqual(t, allocated(t, path), int64(4096), "reading allocated memory again")
	require.NoError(t, run(t, d, &nvmf.Command{Opcode: nvmf.Read, LBA: 300, Blocks: 1, Data: [][]byte{got[:4096]}}))
	assert.LessOrEqual(t, allocated(t, path), int64(4096), "reading deallocated blocks allocated memory")
	require.NoError(t, run(t, d, &nvmf.Command{Opcode: nvmf.Write, LBA: 300, Blocks: 1, Data: [][]byte{want}}))
	assert.Equal(t, want, read(300)[:4096])
}

// TestFaultsInMemory checks that accesses to a truncated file and to invalid buffers
// of the caller fail with errors, not with signals.
func TestFaultsInMemory(t *testing.T) {
	path := filepath.Join(inMemory(t), "ns")
	d, err := filedev.Create(path, nvmf.MiB, filedev.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	pages, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(pages)) }()
	command := func(op nvmf.Opcode, data []byte) error {
		return run(t, d, &nvmf.Command{Opcode: op, Blocks: 2, Data: [][]byte{data}})
	}
	require.NoError(t, command(nvmf.Write, pages))
	require.NoError(t, unix.Mprotect(pages[4096:], unix.PROT_READ))
	assert.NoError(t, command(nvmf.Write, pages))
	assert.ErrorIs(t, command(nvmf.Read, pages), unix.EFAULT)
	require.NoError(t, unix.Mprotect(pages[4096:], unix.PROT_NONE))
	assert.ErrorIs(t, command(nvmf.Write, pages), unix.EFAULT)

	require.NoError(t, os.Truncate(path, 4096))
	for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read} {
		err = command(op, make([]byte, 8192))
		assert.ErrorIs(t, err, unix.EIO)
		assert.ErrorContains(t, err, "was the file truncated?")
	}
}
