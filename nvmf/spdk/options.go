package spdk

import (
	"errors"
	"time"

	"github.com/google/uuid"

	"nvmecr/nvmf"
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
