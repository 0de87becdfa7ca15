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

// Retire is called when the process ends: from then on Open fails. SPDK opens streams
// (fopen) to connect, and libc, which flushes all streams at exit, holds the lock that
// fopen needs.
func Retire() { retired.Store(true) }

// Options are how to reach and use a namespace. The zero value is usable. For fields
// without a comment see tcp.Options.
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
	// RegisterFrom is the length in bytes from which on a piece of a command's data is
	// registered with the RDMA device, instead of copied. Default 512 KiB.
	RegisterFrom nvmf.Bytes
	// Memory is how much SPDK's environment may use. Default 64 MiB over TCP,
	// 256 MiB, of huge pages, over RDMA and PCIe. The first Open decides.
	Memory nvmf.Bytes
}
