package tree

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// TestSizes checks that each change of the number of ranks is recorded once, and that other names are ignored.
func TestSizes(t *testing.T) {
	d := newDisk(t, false)
	fs := d.mount(attached{d.dev}, microfs.Options{})
	defer func() { require.NoError(t, fs.Unmount()) }()
	for _, name := range []string{"ranks-", "ranks-zzz-2", "ranks-0000000000000001-0", "0000000000000007-1-0", "size"} {
		f, err := fs.Open(root, name, unix.O_WRONLY|unix.O_CREAT, 0o600)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	sizes, err := Sizes(fs)
	require.NoError(t, err)
	assert.Empty(t, sizes)

	before := time.Now()
	for _, ranks := range []int{4, 4, 2, 2, 4, 1000000} {
		require.NoError(t, NoteSize(fs, ranks))
	}
	sizes, err = Sizes(fs)
	require.NoError(t, err)
	var noted []int
	for _, s := range sizes {
		noted = append(noted, s.Ranks)
		assert.False(t, s.Since.Before(before), "%v %v", s.Since, before)
		before = s.Since
	}
	assert.Equal(t, []int{4, 2, 4, 1000000}, noted)
}
