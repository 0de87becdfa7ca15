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

// ErrUnusable is the error of Open in a forked child, since SPDK belongs to the parent,
// and in a process that has called Retire.
var ErrUnusable = errors.New("SPDK cannot be used in a forked child, or while a process ends")

var retired atomic.Bool

// Retire must be called when the process ends. From then on Open fails. The reason is
// that SPDK opens streams (fopen) to connect. At exit, libc flushes all streams and
// holds the lock that fopen needs.
func Retire() { retired.Store(true) }

// Options are the options of Open. The zero value is usable. For fields without a
// comment see tcp.Options.
type Options struct {
	HostNQN                  string
	HostID                   uuid.UUID
	Keys                     dhchap.Keys // not used over PCIe
	AuthOffer                dhchap.Offer
	PSK                      tlspsk.Key // the key for TLS over TCP; zero means no TLS
	HeaderDigest, DataDigest bool
	ConnectTimeout           time.Duration // default 10 s
	CommandTimeout           time.Duration // default 30 s
	KeepAlive                time.Duration // default 30 s; a negative value means none
	QueueDepth               int           // default 128
	MaxTransfer              nvmf.Bytes    // default 4 MiB, 1 MiB over RDMA and PCIe
	OptimalTransfer          nvmf.Bytes
	CongestionControl        string
	// RegisterFrom is the minimum length in bytes of a piece of data that is registered
	// with the RDMA device instead of copied. The default is 512 KiB.
	RegisterFrom nvmf.Bytes
	// Memory is the memory for SPDK's environment. The default is 64 MiB over TCP, and
	// 256 MiB of huge pages over RDMA and PCIe. The value of the first Open counts.
	Memory nvmf.Bytes
}
