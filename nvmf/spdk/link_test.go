//go:build spdk

package spdk

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nvmecr/nvmf"
)

// TestFirstHost checks that devices that share a drive use the host NQN and identifier of
// the first device, also when they reconnect, until the last device has left.
func TestFirstHost(t *testing.T) {
	l := &link{users: 2}
	one, two := Options{}.complete(nvmf.PCIe), Options{}.complete(nvmf.PCIe)
	two.QueueDepth = 7
	assert.Equal(t, one, *l.asFirst(&one))
	as := l.asFirst(&two)
	assert.Equal(t, one.HostID, as.HostID)
	assert.Equal(t, one.HostNQN, as.HostNQN)
	assert.Equal(t, 7, as.QueueDepth, "other options are those of the second device")
	assert.NotEqual(t, one.HostID, two.HostID)
	l.leave(&Device{opts: one})
	assert.Equal(t, one.HostID, l.asFirst(&two).HostID, "the second device is still open")
	l.leave(&Device{opts: two})
	assert.Equal(t, two.HostID, l.asFirst(&two).HostID)
}
