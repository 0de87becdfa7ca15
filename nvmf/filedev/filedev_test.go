package filedev_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/filedev"
)

func TestConformance(t *testing.T) {
	for _, lba := range []nvmf.Bytes{512, 4096} {
		for name, dir := range map[string]func(*testing.T) string{"disk": (*testing.T).TempDir, "memory": inMemory} {
			t.Run(lba.String()+"/"+name, func(t *testing.T) {
				blocktest.Run(t, func(t *testing.T) nvmf.Device {
					d, err := filedev.Create(filepath.Join(dir(t), "ns"), nvmf.Bytes(blocktest.MinimumBlocks)*lba,
						filedev.Options{LBASize: lba})
					require.NoError(t, err)
					return d
				})
			})
		}
	}
}

// run executes one command on a new queue.
func run(t *testing.T, d nvmf.Device, c *nvmf.Command) error {
	q, err := d.OpenQueue(context.Background(), 1)
	require.NoError(t, err)
	defer func() { assert.NoError(t, q.Close()) }()
	q.Submit([]*nvmf.Command{c})
	return q.Wait([]*nvmf.Command{c})
}

func TestDataAndUUIDSurviveReopenAndRename(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ns")
	d, err := filedev.Create(path, nvmf.MiB, filedev.Options{})
	require.NoError(t, err)
	want := make([]byte, 4096)
	copy(want, "still here")
	require.NoError(t, run(t, d, &nvmf.Command{Opcode: nvmf.Write, LBA: 9, Blocks: 1, Data: [][]byte{want}}))
	before := *d.Identity()
	require.NoError(t, d.Close())

	moved := filepath.Join(dir, "moved")
	require.NoError(t, os.Rename(path, moved))
	d, err = filedev.Open(moved, filedev.Options{})
	require.NoError(t, err)
	assert.True(t, before.Same(d.Identity()), "identity")
	got := make([]byte, 4096)
	require.NoError(t, run(t, d, &nvmf.Command{Opcode: nvmf.Read, LBA: 9, Blocks: 1, Data: [][]byte{got}}))
	assert.Equal(t, want, got)
	require.NoError(t, d.Close())

	image, err := os.ReadFile(moved)
	require.NoError(t, err)
	copied := filepath.Join(dir, "copied")
	require.NoError(t, os.WriteFile(copied, image, 0o600))
	d, err = filedev.Open(copied, filedev.Options{})
	require.NoError(t, err)
	assert.NotEqual(t, before.UUID, d.Identity().UUID, "a copy is another namespace")
	require.NoError(t, d.Close())
}

func TestTruncatedFileIsAnErrorNotData(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	d, err := filedev.Create(path, nvmf.MiB, filedev.Options{})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 8192))
	got := make([]byte, 8192)
	err = run(t, d, &nvmf.Command{Opcode: nvmf.Read, LBA: 1, Blocks: 2, Data: [][]byte{got}})
	assert.ErrorContains(t, err, "truncated")
	require.NoError(t, d.Close())
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := filedev.Open(filepath.Join(dir, "absent"), filedev.Options{})
	assert.ErrorIs(t, err, fs.ErrNotExist)
	_, err = filedev.Open("/dev/null", filedev.Options{})
	assert.ErrorIs(t, err, nvmf.ErrUnsupported)
	_, err = filedev.Create(filepath.Join(dir, "small"), 100, filedev.Options{})
	assert.ErrorIs(t, err, nvmf.ErrUnsupported)
	_, err = filedev.Create(filepath.Join(dir, "ns"), nvmf.MiB, filedev.Options{LBASize: 1000})
	assert.ErrorIs(t, err, nvmf.ErrUnsupported)
	_, err = filedev.Create(filepath.Join(dir, "ns"), nvmf.MiB, filedev.Options{})
	assert.ErrorIs(t, err, fs.ErrExist, "an existing file is never replaced")
}

// TestFullDiskIsENOSPC checks that a write to a sparse file fails with ENOSPC when its file system is full.
func TestFullDiskIsENOSPC(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	d, err := filedev.Create(filepath.Join(dir, "ns"), 4*nvmf.MiB, filedev.Options{})
	require.NoError(t, err)
	data := make([]byte, nvmf.MiB)
	var full error
	for lba := nvmf.LBA(0); lba < 1024 && full == nil; lba += 256 {
		full = run(t, d, &nvmf.Command{Opcode: nvmf.Write, LBA: lba, Blocks: 256, Data: [][]byte{data}})
	}
	assert.ErrorIs(t, full, unix.ENOSPC)
	require.NoError(t, d.Close())
}

// TestReadOnly checks that a file without write permission can be read, and that it
// does not change.
func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o400))
	d, err := filedev.Open(path, filedev.Options{ReadOnly: true})
	require.NoError(t, err)
	q, err := d.OpenQueue(t.Context(), 1)
	require.NoError(t, err)
	block := [][]byte{make([]byte, 4096)}
	read := nvmf.Command{Opcode: nvmf.Read, Blocks: 1, Data: block}
	write := nvmf.Command{Opcode: nvmf.Write, Blocks: 1, Data: block}
	q.Submit([]*nvmf.Command{&read, &write})
	assert.NoError(t, q.Wait([]*nvmf.Command{&read}))
	assert.ErrorIs(t, q.Wait([]*nvmf.Command{&write}), unix.EROFS)
	require.NoError(t, q.Close())
	require.NoError(t, d.Close())
	_, err = unix.Getxattr(path, "user.nvmecr.uuid", nil)
	assert.Error(t, err, "Open added the attribute")
}
