package command

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// TestFilesOfTree checks that the writer of a file follows from the partitions of its data, and that lost data stays lost until the file
// is changed.
func TestFilesOfTree(t *testing.T) {
	const size = 16 * nvmf.MiB
	dev, err := memdev.New(size, 4096, memdev.Options{})
	require.NoError(t, err)
	whole := microfs.Segment{Length: size}
	require.NoError(t, microfs.Format(t.Context(), dev, whole, microfs.FormatOptions{Generation: 1, Ranges: true}))
	fs, err := microfs.Mount(t.Context(), dev, whole, microfs.Options{Generation: 1})
	require.NoError(t, err)
	for name, partitions := range map[string][]uint32{"/ck.1.0": {0}, "/ck.1.1": {1}, "/ck.1.all": {0, 1}, "/ck.1.empty": nil} {
		f, err := fs.Open(microfs.RootIno, name, syscall.O_WRONLY|syscall.O_CREAT, 0o600)
		require.NoError(t, err)
		for i, p := range partitions {
			require.NoError(t, f.MapRanges([]microfs.Range{{Off: int64(i), Len: 1, Partition: p}}, int64(i)+1, time.Now()))
		}
		require.NoError(t, f.Close())
	}
	w, err := writersOfTree(t.Context(), nil, fs, false)
	require.NoError(t, err)
	of := func() (ranks map[string]int, lost []string) {
		files, err := w.files(fs)
		require.NoError(t, err)
		ranks = map[string]int{}
		for _, f := range files {
			if ranks[f.Path] = f.Rank; f.Lost {
				lost = append(lost, f.Path)
			}
		}
		return ranks, lost
	}
	ranks, lost := of()
	assert.Equal(t, map[string]int{"/ck.1.0": 0, "/ck.1.1": 1, "/ck.1.all": noRank, "/ck.1.empty": noRank}, ranks)
	assert.Empty(t, lost)
	a, err := fs.Stat(microfs.RootIno, "/ck.1.1", false)
	require.NoError(t, err)
	w.lost = lostFiles{a.Ino: changeTimes(fs)[a.Ino]}
	_, lost = of()
	assert.Equal(t, []string{"/ck.1.1"}, lost)
	require.NoError(t, fs.SetAttr(microfs.RootIno, "/ck.1.1", false, microfs.SetAttr{Mtime: &a.Mtime})) // as a restore does
	_, lost = of()
	assert.Empty(t, lost)
}
