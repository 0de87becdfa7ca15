package filedev_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/filedev"
)

// TestReachesStorage checks that the kernel has no dirty pages of the file after a
// Flush, and after a write with FUA.
func TestReachesStorage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	d, err := filedev.Create(path, nvmf.MiB, filedev.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	write := func(lba nvmf.LBA, fua bool) {
		data := [][]byte{bytes.Repeat([]byte("x"), 8192)}
		require.NoError(t, run(t, d, &nvmf.Command{Opcode: nvmf.Write, LBA: lba, Blocks: 2, Data: data, FUA: fua}))
	}
	write(3, false)
	require.NoError(t, run(t, d, &nvmf.Command{Opcode: nvmf.Flush}))
	blocktest.RequireSynced(t, path, "Flush")
	write(9, true)
	blocktest.RequireSynced(t, path, "a write with FUA")
}
