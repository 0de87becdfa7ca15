//go:build spdk

package spdk

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// TestOfDevice checks which open files are recognized as files of a PCI or RDMA device.
func TestOfDevice(t *testing.T) {
	for what, want := range map[string]bool{
		"/dev/vfio/vfio":                                 true,
		"/dev/vfio/12":                                   true,
		"/dev/uio0":                                      true,
		"/dev/infiniband/uverbs0":                        true,
		"/dev/infiniband/rdma_cm":                        true,
		"anon_inode:[vfio-device]":                       true,
		"anon_inode:[eventfd]":                           false,
		"/dev/null":                                      false,
		"/home/me/sys/config":                            false,
		"/var/tmp/spdk_cpu_lock_000":                     false,
		"/var/tmp/spdk_pci_lock_0000:01:00.0":            true,
		"/sys/devices/pci0000:00/0000:00:01.0/config":    true,
		"/sys/devices/pci0000:00/0000:00:01.0/resource0": true,
		"/sys/devices/pci0000:00/0000:00:01.0/resource":  true,
		"/sys/devices/pci0000:00/0000:00:01.0/net/eth0/statistics/rx_errors": false,
	} {
		assert.Equal(t, want, ofDevice(what), what)
	}
}

// holder takes the place of the preload library, which keeps the application from
// closing held descriptors.
type holder struct {
	mu   sync.Mutex
	held map[int]bool
}

func keepDescriptors(t *testing.T) *holder {
	h := &holder{held: map[int]bool{}}
	note := func(held bool) func(int) {
		return func(fd int) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.held[fd] = held
		}
	}
	ownfd.Keep(ownfd.Keeper{Hold: func(fd int) int { return fd }, Stay: note(true), Drop: note(false)})
	t.Cleanup(func() { ownfd.Keep(ownfd.Keeper{Hold: func(fd int) int { return fd }, Drop: func(int) {}}) })
	return h
}

func (h *holder) holds(fd int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[fd]
}

// lockedDevice opens a file with the name of an SPDK lock file for a drive.
func lockedDevice(t *testing.T) int {
	path := fmt.Sprintf("%snvmecr_test_%d", lockFile, os.Getpid())
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Remove(path) }) // fails if another call has removed the file
	return fd
}

// TestDevicesAtOnce has several connections begin and end concurrently. The device
// descriptors of each connection are held while they are open, except while SPDK may close
// them. Descriptors of the application are not held.
func TestDevicesAtOnce(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	h := keepDescriptors(t)
	var table deviceTable
	mine := lockedDevice(t) // a descriptor of the application
	defer unix.Close(mine)
	var group sync.WaitGroup
	for n := range 4 {
		group.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			nap := func() { time.Sleep(time.Duration(r.IntN(500)) * time.Microsecond) }
			shut := func(fd int) {
				assert.False(t, h.holds(fd), "SPDK could not close it")
				assert.NoError(t, unix.Close(fd))
			}
			for range 20 {
				var own deviceSet
				var device, other int
				table.around(&own, func() { // start of a connection
					moment := lockedDevice(t)
					nap()
					shut(moment)
				})
				nap()
				table.around(&own, func() { device, other = lockedDevice(t), lockedDevice(t) })
				nap()
				assert.True(t, h.holds(device) && h.holds(other), "not affected by other goroutines")
				assert.Len(t, own, 2)
				table.around(&own, func() { shut(other) })
				nap()
				assert.True(t, h.holds(device), "not affected by other goroutines")
				table.around(&own, func() { shut(device) })
				assert.Empty(t, own)
			}
		})
	}
	group.Wait()
	assert.False(t, h.holds(mine))
	assert.Empty(t, table.shared)
}

// TestDevicesShared checks a descriptor that SPDK shares between connections. It is still
// held after the connection that opened it has ended, and can be closed with the last one.
func TestDevicesShared(t *testing.T) {
	h := keepDescriptors(t)
	var table deviceTable
	var first, second deviceSet
	var shared, own int
	table.around(&first, func() { shared = lockedDevice(t) })
	table.around(&second, func() { own = lockedDevice(t) })
	table.around(&first, func() {})
	table.leave(&first)
	assert.True(t, h.holds(shared))
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(null)
	table.around(&second, func() {})
	assert.True(t, h.holds(shared) && h.holds(own))
	assert.False(t, h.holds(null))
	assert.Len(t, second, 1)
	table.around(&second, func() {
		assert.False(t, h.holds(shared) || h.holds(own))
		assert.NoError(t, unix.Close(shared))
		assert.NoError(t, unix.Close(own))
	})
	table.leave(&second)
	assert.Empty(t, table.shared)
}
