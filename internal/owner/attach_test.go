package owner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// attaches is a process that attaches, and serves if no other process does.
func attaches(group string, patience time.Duration) {
	said := "attaches"
	var listen *HandoverListener
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := Attach(ctx, group, func() error {
		time.Sleep(50 * time.Millisecond) // other processes attach meanwhile
		said = "serves"
		var err error
		listen, err = ListenForHandovers(group)
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		said = "waited"
	} else if err != nil {
		said = err.Error()
	}
	fmt.Println(said)
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(listen)
}

// prepares is a process that prepares a run.
func prepares() {
	if err := Prepare("used"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("prepared")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestAttend checks that one of several processes that attach at once starts the server, and that later processes
// wait for the end of an ending server.
func TestAttend(t *testing.T) {
	t.Cleanup(func() { RemoveGroup("group") })
	assert.False(t, OfRun("group"))
	processes := make([]*process, 6)
	for i := range processes {
		processes[i] = start(t, "attaches")
	}
	said := map[string]int{}
	for _, p := range processes {
		said[p.line(t)]++
	}
	assert.Equal(t, map[string]int{"serves": 1, "attaches": len(processes) - 1}, said)
	for _, p := range processes {
		assert.False(t, Unattached("group"))
		require.NoError(t, p.stdin.Close())
		require.NoError(t, p.Wait())
	}
	require.True(t, Unattached("group"))
	assert.Equal(t, "waited", start(t, "waits").line(t))
	require.NoError(t, remove(Directory("group")+"/"+successorFile)) // socket of the server that has just ended
	RemoveUnattached("group")
	assert.NoDirExists(t, Directory("group"))
	// The next process creates a new directory.
	assert.Equal(t, "serves", start(t, "attaches").line(t))
	assert.False(t, Unattached("group"))
	require.NoError(t, Prepare("group"))
	assert.True(t, OfRun("group"))
	assert.True(t, InUse("group"))
	RemoveUnattached("group")
	assert.True(t, OfRun("group"), "that is the run's to remove")
}

// TestInUse checks that a run is in use while the process that has prepared it lives, and on other hosts while a
// process is attached.
func TestInUse(t *testing.T) {
	assert.False(t, InUse("used"), "there is no directory")
	p := start(t, "prepares")
	assert.Equal(t, "prepared", p.line(t))
	assert.True(t, InUse("used"))
	p.kill()
	assert.False(t, InUse("used"))
	require.NoError(t, Prepare("used"))
	assert.True(t, InUse("used"))
	EndRun("used")
	assert.False(t, InUse("used"))
	p = start(t, "attaches used")
	assert.Equal(t, "serves", p.line(t))
	assert.True(t, InUse("used"))
	p.kill()
	assert.False(t, InUse("used"))
	RemoveGroup("used")
	assert.NoDirExists(t, Directory("used"))
}
