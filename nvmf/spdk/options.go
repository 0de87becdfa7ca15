package spdk

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/tlspsk"
)

// ErrUnusable is why a forked child cannot open anything, for SPDK belongs to its
// parent, and why a process cannot that has called Retire.
var ErrUnusable = errors.New("SPDK cannot be used in a forked child, or while a process ends")

var retired atomic.Bool

// Retire is called when the process ends: no connection is opened any more. SPDK
// reads files to open one, as streams, and libc, which flushes those then, lets
// nobody have another.
func Retire() { retired.Store(true) }

// Options are how to reach and use a namespace. The zero value is usable. What
// they mean is said of tcp.Options.
type Options struct {
	HostNQN                  string
	HostID                   uuid.UUID
	Keys                     dhchap.Keys // not used over PCIe
	AuthOffer                dhchap.Offer
	PSK                      tlspsk.Key // for TLS over TCP, unless it is zero
	HeaderDigest, DataDigest bool
	ConnectTimeout           time.Duration // default 10 s
	CommandTimeout           time.Duration // default 30 s
	KeepAlive                time.Duration // default 30 s, less than 0 is none
	QueueDepth               int           // default 128
	MaxTransfer              nvmf.Bytes    // default 4 MiB, 1 MiB over RDMA and PCIe
	OptimalTransfer          nvmf.Bytes
	CongestionControl        string
	// Lend is from how long a piece of a command's data on the device is lent it over
	// RDMA, instead of a copy. Default 512 KiB.
	Lend nvmf.Bytes
	// Memory is how much SPDK's environment may use. Default 64 MiB over TCP,
	// 256 MiB, of huge pages, over RDMA and PCIe. The first Open decides.
	Memory nvmf.Bytes
}
