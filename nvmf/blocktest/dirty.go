package blocktest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// RequireSynced fails unless the kernel has written everything in the page cache of
// a file to its storage. It says nothing on a file system in memory, on an overlay, and
// before Linux 6.5, which cannot tell.
func RequireSynced(t testing.TB, path, after string) {
	t.Helper()
	require.Zero(t, dirtyPages(t, path), "pages that are not on the storage after %s", after)
}

// dirtyPages returns how many pages of a file have yet to be written to its storage.
func dirtyPages(t testing.TB, path string) uint64 {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var whole unix.CachestatRange // a length of 0 is to the end
	var stat unix.Cachestat_t
	err = unix.Cachestat(uint(f.Fd()), &whole, &stat, 0)
	if err == unix.ENOSYS || err == unix.EPERM {
		t.Logf("this kernel does not say what is dirty (cachestat, Linux 6.5): %v", err)
		return 0
	}
	require.NoError(t, err)
	return stat.Dirty + stat.Writeback
}
