package owner

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRelays checks that Await waits for the work of relays, but not for relays that have ended or do not answer.
func TestRelays(t *testing.T) {
	group := "relaytest"
	require.NoError(t, Prepare(group))
	t.Cleanup(func() { RemoveGroup(group) })
	reader := &Relays{Group: group, Timeout: time.Minute}
	reader.Await() // no relays

	var one, two Relays
	one.Group, two.Group = group, group
	var done, own atomic.Int32
	require.NoError(t, one.Listen(func() { time.Sleep(10 * time.Millisecond); done.Add(1) }))
	require.NoError(t, two.Listen(func() { done.Add(1) }))
	require.NoError(t, reader.Listen(func() { own.Add(1) }))
	reader.Await()
	assert.EqualValues(t, 2, done.Load())
	assert.Zero(t, own.Load(), "nobody waits for itself")
	require.NoError(t, two.Close())
	require.NoError(t, two.Close())
	kept := reader.asked[one.file]
	reader.Await()
	assert.EqualValues(t, 3, done.Load())
	assert.Equal(t, map[string]int{one.file: kept}, reader.asked, "one connection, used again")
	require.NoError(t, unix.Shutdown(kept, unix.SHUT_RDWR))
	reader.Await()
	assert.EqualValues(t, 4, done.Load(), "by another connection, where the first has ended")

	dir := filepath.Join(Directory(group), relayDir)
	killed := filepath.Join(dir, "1-1")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: killed}))
	require.NoError(t, unix.Close(fd))
	reader.Await()
	assert.NoFileExists(t, killed)

	stopped := make(chan struct{})
	require.NoError(t, two.Listen(func() { <-stopped }))
	reader.Timeout = time.Millisecond
	reader.Await()
	reader.Timeout = time.Hour
	reader.Await() // does not wait again
	close(stopped)

	for _, c := range []*Relays{&one, &two, reader} {
		require.NoError(t, c.Close())
	}
	assert.NoDirExists(t, dir)
	reader.Await()
	assert.Empty(t, reader.asked, "nobody relays any more")
	_, err = os.Stat(Directory(group))
	assert.NoError(t, err)
}
