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

// Options are how to reach and use a namespace. The zero value is usable.
type Options struct {
	// HostNQN is the NQN of this host. Default: HostID as a UUID-based NQN.
	HostNQN string
	// HostID identifies the host. Default: random, once per Options.
	HostID uuid.UUID
	// Keys are the secrets for targets that ask for authentication. With a
	// Controller secret the target has to prove that it knows it: one that
	// asks for no authentication is refused then.
	Keys dhchap.Keys
	// AuthOffer restricts the hashes and groups of the authentication.
	AuthOffer dhchap.Offer
	// PSK, unless it is zero, is the key with which every connection uses TLS.
	// No connection is made without TLS then.
	PSK tlspsk.Key
	// HeaderDigest and DataDigest ask for CRC32C digests; opening fails if
	// the target does not agree.
	HeaderDigest, DataDigest bool
	// ConnectTimeout bounds the opening of each connection. Default 10 s.
	ConnectTimeout time.Duration
	// CommandTimeout is how long commands may be in flight without any of
	// them completing until the connection is given up. Default 30 s.
	CommandTimeout time.Duration
	// KeepAlive is the keep-alive time-out the target is told (KATO).
	// Default 30 s; less than 0 is none.
	KeepAlive time.Duration
	// QueueDepth bounds the commands in flight per queue. Default 128.
	QueueDepth int
	// MaxTransfer bounds Identity.MaxTransfer. Default 4 MiB.
	MaxTransfer nvmf.Bytes
	// OptimalTransfer is what Identity reports, within the limits of the
	// target. Default 128 KiB where a capsule takes that much, else 512 KiB.
	OptimalTransfer nvmf.Bytes
	// CongestionControl is set on every socket. Default cubic, or reno where
	// there is no cubic: pacing as BBR does it halves the bandwidth of a
	// storage network. "system" leaves what the system has.
	CongestionControl string
	// Dial connects to the target and returns a connected stream socket,
	// which the initiator makes non-blocking and closes. Default: TCP to
	// the id's address. Tests put themselves between with it.
	Dial func(ctx context.Context, id nvmf.TransportID) (fd int, err error)
}

// Limits of ours.
const (
	adminDepth = 31
	// adminCapsuleData is what every controller takes in the capsule of an
	// admin or Fabrics command (TCP Transport 1.0, section 3.3.2.1).
	adminCapsuleData = 8192
	// wantedQueues is how many I/O queues a controller is asked for. More
	// than one Device opens, so that a reconnection need not reuse an id
	// the target has not given up yet.
	wantedQueues = 64
)

// complete fills in the defaults and refuses what cannot be.
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
