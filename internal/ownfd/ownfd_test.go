package ownfd

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func open(t *testing.T) int {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	return fd
}

func TestWithoutKeeper(t *testing.T) {
	fd := open(t)
	assert.Equal(t, fd, Hold(fd))
	assert.NoError(t, Close(fd))
	assert.Equal(t, unix.EBADF, Close(fd))
}

func TestKeeperIsToldBeforeTheDescriptorIsClosed(t *testing.T) {
	t.Cleanup(func() { keeper.Store(nil) })
	var dropped []int
	Keep(Keeper{
		Hold: func(fd int) int {
			moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 200)
			require.NoError(t, err)
			require.NoError(t, unix.Close(fd))
			return moved
		},
		Drop: func(fd int) {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			assert.NoError(t, err, "still open")
			dropped = append(dropped, fd)
		},
	})
	a, b := Hold(open(t)), Hold(open(t))
	assert.GreaterOrEqual(t, a, 200)
	require.NoError(t, Close(a))
	f := os.NewFile(uintptr(b), "b")
	require.NoError(t, CloseFile(f))
	assert.ErrorIs(t, CloseFile(f), os.ErrClosed)
	assert.Equal(t, []int{a, b}, dropped)
}

func TestHoldInPlace(t *testing.T) {
	t.Cleanup(func() { keeper.Store(nil) })
	keeper.Store(nil)
	HoldInPlace(7) // without a Keeper
	Keep(Keeper{})
	HoldInPlace(7)
	var stays []int
	Keep(Keeper{Stay: func(fd int) { stays = append(stays, fd) }})
	HoldInPlace(7)
	assert.Equal(t, []int{7}, stays)
}

func TestAside(t *testing.T) {
	t.Cleanup(func() { keeper.Store(nil) })
	for name, k := range map[string]*Keeper{"no keeper": nil, "one that does nothing": {}} {
		keeper.Store(k)
		done := false
		Aside(func() { done = true })
		assert.True(t, done, name)
	}
	var steps []string
	Keep(Keeper{Aside: func(open func()) {
		steps = append(steps, "taken")
		open()
		steps = append(steps, "free")
	}})
	Aside(func() { steps = append(steps, "opened") })
	assert.Equal(t, []string{"taken", "opened", "free"}, steps)
}
