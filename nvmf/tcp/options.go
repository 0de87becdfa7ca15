package tcp

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/tlspsk"
)

// Options configure connections and queues. The zero value is usable.
type Options struct {
	// HostNQN is the NQN of this host. Default: HostID as a UUID-based NQN.
	HostNQN string
	// HostID identifies the host. Default: random, once per Options.
	HostID uuid.UUID
	// Keys are the secrets for targets that ask for authentication. With a
	// Controller secret the target has to authenticate, too, and a target that
	// does not ask for authentication is refused.
	Keys dhchap.Keys
	// AuthOffer restricts the hashes and groups of the authentication.
	AuthOffer dhchap.Offer
	// PSK is the key for TLS. Unless it is zero, every connection uses TLS.
	PSK tlspsk.Key
	// HeaderDigest and DataDigest ask for CRC32C digests; opening fails if
	// the target does not agree.
	HeaderDigest, DataDigest bool
	// ConnectTimeout bounds the opening of each connection. Default 10 s.
	ConnectTimeout time.Duration
	// CommandTimeout is the time after which a connection counts as lost if
	// commands are in flight and none of them completes. Default 30 s.
	CommandTimeout time.Duration
	// KeepAlive is the keep-alive time-out (KATO). Default 30 s; less than 0
	// means no keep-alive.
	KeepAlive time.Duration
	// QueueDepth bounds the commands in flight per queue. Default 128.
	QueueDepth int
	// MaxTransfer bounds Identity.MaxTransfer. Default 4 MiB.
	MaxTransfer nvmf.Bytes
	// OptimalTransfer is Identity.OptimalTransfer, within the limits of the
	// target. Default 128 KiB if that fits a capsule, else 512 KiB.
	OptimalTransfer nvmf.Bytes
	// CongestionControl is set on every socket. The default is cubic, or reno if
	// the kernel has no cubic, since BBR's pacing halves the bandwidth of a
	// storage network. "system" keeps the system's default.
	CongestionControl string
	// Dial connects to the target and returns a connected stream socket,
	// which the initiator makes non-blocking and closes. Default: TCP to
	// the id's address. Tests use it to connect to a peer in the process.
	Dial func(ctx context.Context, id nvmf.TransportID) (fd int, err error)
}

// Limits of this initiator.
const (
	adminDepth = 31
	// adminCapsuleData is the in-capsule data that every controller accepts in
	// admin and Fabrics commands (TCP Transport 1.0, section 3.3.2.1).
	adminCapsuleData = 8192
	// wantedQueues is the number of I/O queues that the host asks for. That is more
	// than a Device opens, so that a reconnection need not use an id that the
	// target still considers in use.
	wantedQueues = 64
)

// complete sets the defaults, and refuses invalid values.
func (o Options) complete() (Options, error) {
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, initiator.ConnectTimeout)
	o.CommandTimeout = cmp.Or(o.CommandTimeout, initiator.CommandTimeout)
	o.KeepAlive = cmp.Or(o.KeepAlive, initiator.KeepAlive)
	o.HostID, o.HostNQN = initiator.Host(o.HostID, o.HostNQN)
	if len(o.HostNQN) > nvme.MaxNQN {
		return o, fmt.Errorf("host NQN is %d bytes long, at most %d are allowed", len(o.HostNQN), nvme.MaxNQN)
	}
	if err := (initiator.Authentication{Keys: o.Keys}).Check(); err != nil {
		return o, err
	}
	o.QueueDepth = initiator.QueueDepth(o.QueueDepth)
	o.MaxTransfer = min(cmp.Or(o.MaxTransfer, 4*nvmf.MiB), initiator.MaxTransfer)
	if o.Dial == nil {
		cc := o.CongestionControl
		o.Dial = func(ctx context.Context, id nvmf.TransportID) (int, error) { return dialTCP(ctx, id, cc) }
	}
	return o, nil
}
