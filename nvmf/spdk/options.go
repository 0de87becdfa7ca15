package spdk

import (
	"errors"
	"time"

	"github.com/google/uuid"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

// ErrForked is why a forked child cannot open anything: SPDK belongs to its parent.
var ErrForked = errors.New("SPDK was initialized before, perhaps by the process that this one was forked from")

// Options are how to reach and use a namespace. The zero value is usable. What
// they mean is said of tcp.Options.
type Options struct {
	HostNQN                  string
	HostID                   uuid.UUID
	HeaderDigest, DataDigest bool
	ConnectTimeout           time.Duration // default 10 s
	CommandTimeout           time.Duration // default 30 s
	KeepAlive                time.Duration // default 30 s, less than 0 is none
	QueueDepth               int           // default 128
	MaxTransfer              nvmf.Bytes    // default 4 MiB, 1 MiB over RDMA and PCIe
	OptimalTransfer          nvmf.Bytes
	// Memory is how much SPDK's environment may use. Default 64 MiB over TCP,
	// 256 MiB, of huge pages, over RDMA and PCIe. The first Open decides.
	Memory nvmf.Bytes
}

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
