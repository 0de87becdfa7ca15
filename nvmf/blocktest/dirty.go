package blocktest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// RequireSynced checks that the page cache has no dirty pages of a file. It checks
// nothing on tmpfs, on overlayfs, and before Linux 6.5, which do not report dirty
// pages.
func RequireSynced(t testing.TB, path, after string) {
	t.Helper()
	require.Zero(t, dirtyPages(t, path), "pages that are not on the storage after %s", after)
}

// dirtyPages returns the number of dirty pages of a file.
func dirtyPages(t testing.TB, path string) uint64 {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var whole unix.CachestatRange // length 0 means to the end of the file
	var stat unix.Cachestat_t
	err = unix.Cachestat(uint(f.Fd()), &whole, &stat, 0)
	if err == unix.ENOSYS || err == unix.EPERM {
		t.Logf("this kernel does not report dirty pages (cachestat, Linux 6.5): %v", err)
		return 0
	}
	require.NoError(t, err)
	return stat.Dirty + stat.Writeback
}
