package command

import (
	"fmt"
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
)

// TestJoinServeProcess checks that a run has the view of the run that it joins, also if the server is too busy to answer, and none if
// that has none.
func TestJoinServeProcess(t *testing.T) {
	cfg := config.Default()
	var err error
	cfg.Run, err = store.NewRun(uuid.Nil)
	require.NoError(t, err)
	group := store.LockGroup(cfg.Run)
	require.NoError(t, owner.Prepare(group))
	t.Cleanup(func() { owner.RemoveGroup(group) })
	require.NoError(t, joinServeProcess(cfg))
	assert.Empty(t, cfg.Export, "there is no view")

	view := viewOf(cfg)
	require.NoError(t, makeViewDirectory(view))
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no FUSE here: ", err)
	}
	defer fuse.Close() // ends the waiting thread
	err = unix.Mount("silent", view, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd()))
	if err != nil {
		t.Skip("no FUSE file system can be mounted without help: ", err)
	}
	defer func() { require.NoError(t, unix.Unmount(view, unix.MNT_DETACH)) }()
	require.NoError(t, joinServeProcess(cfg))
	assert.Equal(t, view, cfg.Export, "nobody answers yet")
}
