//go:build spdk

package spdk

import (
	"time"

	"github.com/google/uuid"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

const maxDepth = 1024

// complete fills in the defaults.
func (o Options) complete(transport nvmf.Transport) Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.ConnectTimeout, 10*time.Second)
	def(&o.CommandTimeout, 30*time.Second)
	def(&o.KeepAlive, 30*time.Second)
	if o.HostID == uuid.Nil {
		o.HostID = uuid.New()
	}
	if o.HostNQN == "" {
		o.HostNQN = nvme.UUIDPrefix + o.HostID.String()
	}
	if o.QueueDepth <= 0 || o.QueueDepth > maxDepth {
		o.QueueDepth = 128
	}
	transfer, memory := 4*nvmf.MiB, 64*nvmf.MiB
	if transport != nvmf.TCP {
		transfer, memory = nvmf.MiB, 256*nvmf.MiB
	}
	if o.MaxTransfer == 0 {
		o.MaxTransfer = transfer
	}
	o.MaxTransfer = min(o.MaxTransfer, initiator.MaxTransfer)
	if o.Memory == 0 {
		o.Memory = memory
	}
	return o
}
