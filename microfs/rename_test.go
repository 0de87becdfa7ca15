package microfs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRenameForeignDirectory checks that moving a directory to another parent needs write permission for
// the directory itself, since its ".." changes, and that a rename within the same parent does not.
func TestRenameForeignDirectory(t *testing.T) {
	fs, as := mountedAs(t, root)
	uid := user.UID
	for _, dir := range []string{"mine", "mine/theirs", "other"} {
		require.NoError(t, fs.Mkdir(RootIno, dir, 0o755))
	}
	require.NoError(t, fs.SetAttr(RootIno, "mine", false, SetAttr{UID: &uid}))
	require.NoError(t, fs.SetAttr(RootIno, "other", false, SetAttr{UID: &uid}))
	as(user)
	require.Equal(t, unix.EACCES, errnoOf(fs.Rename(RootIno, "mine/theirs", RootIno, "moved", 0)))
	require.Equal(t, unix.EACCES, errnoOf(fs.Rename(RootIno, "other", RootIno, "mine/theirs", unix.RENAME_EXCHANGE)))
	require.NoError(t, fs.Rename(RootIno, "mine/theirs", RootIno, "mine/renamed", 0))
}
