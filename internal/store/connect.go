package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/dial"
	"nvmecr/nvmf/filedev"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tlspsk"
)

// connect opens the namespace id with the settings of cfg, for reading or also for writing. In a mirrored store it
// opens the mirror whose home is id.
func connect(ctx context.Context, cfg *config.Config, id nvmf.TransportID, readOnly bool) (nvmf.Device, error) {
	if t := slices.Index(cfg.Targets, id); t >= 0 && cfg.CopiesSync {
		return connectMirror(ctx, cfg, t, readOnly)
	}
	return connectTo(ctx, cfg, id, readOnly)
}

// connectTo opens the namespace id itself. For reading only, it may be a file without write permission.
func connectTo(ctx context.Context, cfg *config.Config, id nvmf.TransportID, readOnly bool) (nvmf.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	keys, psk, err := secrets(cfg, id)
	if err != nil {
		return nil, err
	}
	nqn := cfg.Host()
	host := hostID(nqn)
	if !readOnly && cfg.Run != uuid.Nil {
		host = cfg.Run // a reservation belongs to a host identifier: each run has its own
	}
	return dial.Open(ctx, id, dial.Options{Driver: dial.Driver(cfg.Driver), File: filedev.Options{ReadOnly: readOnly}, TCP: overTCP(cfg, nqn, host, keys, psk)})
}

// Discover returns the namespaces that the discovery service at an address lists for this host.
func Discover(ctx context.Context, cfg *config.Config, at nvmf.TransportID) ([]nvme.DiscoveryEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	keys, psk, err := secrets(cfg, at)
	if err != nil {
		return nil, err
	}
	nqn := cfg.Host()
	return tcp.Discover(ctx, at, overTCP(cfg, nqn, hostID(nqn), keys, psk))
}

// overTCP returns the options for connections to targets over TCP.
func overTCP(cfg *config.Config, nqn string, host uuid.UUID, keys dhchap.Keys, psk tlspsk.Key) tcp.Options {
	return tcp.Options{
		PSK:          psk,
		HostNQN:      nqn,
		HostID:       host,
		Keys:         keys,
		HeaderDigest: cfg.HeaderDigest,
		DataDigest:   cfg.DataDigest,
		// Half of the time is for detecting the loss of a connection, half for reconnecting.
		CommandTimeout: min(cfg.Timeout/2, 30*time.Second),
		ConnectTimeout: min(cfg.Timeout/2, 10*time.Second),
	}
}

// secrets reads the keys of authentication and TLS, if there are any.
func secrets(cfg *config.Config, id nvmf.TransportID) (keys dhchap.Keys, psk tlspsk.Key, err error) {
	if id.Transport == nvmf.File || id.Transport == nvmf.Mem {
		return keys, psk, nil
	}
	if keys, err = cfg.Secrets(); err == nil {
		psk, err = cfg.TLSPSK()
	}
	return keys, psk, err
}

// readTable reads the table of dev. It waits for a target that stops answering, as long as cfg allows.
func readTable(ctx context.Context, cfg *config.Config, dev nvmf.Device) (*parttable.Table, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	return parttable.Read(ctx, dev)
}

// hostID returns the host identifier for an NQN: the UUID in the NQN, or one that is derived from it.
func hostID(nqn string) uuid.UUID {
	if i := strings.LastIndex(nqn, ":uuid:"); i >= 0 {
		if id, err := uuid.Parse(nqn[i+len(":uuid:"):]); err == nil {
			return id
		}
	}
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(nqn))
}

// want returns the required content of the table of target t. A size of 0 matches any.
func want(cfg *config.Config, t, targets, size int) parttable.Want {
	return parttable.Want{
		Name: cfg.Name, UID: uint32(os.Geteuid()), Size: size, Target: t, Targets: targets, Mirrored: cfg.CopiesSync,
	}
}

// tree returns the kind of tree that the partitions of cfg have.
func tree(cfg *config.Config) parttable.Tree {
	if cfg.View == config.ViewJob {
		return parttable.TreeOfJob
	}
	return parttable.TreeOfRanks
}

// LockGroup returns the name under which processes of a run share locks on this host. A process of another run has
// another name: it neither yields its partition to this run nor makes calls for it. The reservation and the claim
// decide whether it may still write.
func LockGroup(run uuid.UUID) string {
	if run == uuid.Nil {
		return ""
	}
	h := sha256.Sum256(run[:])
	return hex.EncodeToString(h[:8])
}

// lockKey returns the name of the lock of a rank's partition, or of the singleton partition, within a run.
func lockKey(cfg *config.Config, rank int) string {
	h := sha256.New()
	fmt.Fprintln(h, cfg.Name)
	for _, t := range cfg.Targets {
		fmt.Fprintln(h, t)
	}
	name, which := strings.TrimLeft(cfg.Name, "."), strconv.Itoa(rank)
	if rank == parttable.Singleton {
		which = "singleton"
	}
	return fmt.Sprintf("%.32s-%s-%s", name, which, hex.EncodeToString(h.Sum(nil)[:8]))
}

// Identify connects to a namespace, for reading, and returns its identity.
func Identify(ctx context.Context, cfg *config.Config, id nvmf.TransportID) (nvmf.Identity, error) {
	dev, err := connectTo(ctx, cfg, id, true)
	if err != nil {
		return nvmf.Identity{}, err
	}
	return *dev.Identity(), dev.Close()
}
