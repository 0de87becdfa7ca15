package posixshim

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
)

// advised is a file that records calls of Advise.
type advised struct {
	vfs.File
	told *[]int64
}

func (a advised) Advise(off, n int64, advice int) error {
	*a.told = append(*a.told, off, n, int64(advice))
	return nil
}

// TestAdvise checks that posix_fadvise calls Advise of the file, and that it fails on a descriptor of O_PATH.
func TestAdvise(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	f, err := p.files.get(h)
	require.NoError(t, err)
	var told []int64
	var spy vfs.File = advised{f.current(), &told}
	f.file.Store(&spy)
	require.NoError(t, p.Advise(h, 1, 2, unix.FADV_WILLNEED))
	require.Equal(t, []int64{1, 2, unix.FADV_WILLNEED}, told)
	path := file(t, p, "f", unix.O_PATH)
	require.ErrorIs(t, p.Advise(path, 0, 0, unix.FADV_NORMAL), unix.EBADF)
}
