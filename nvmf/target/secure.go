package target

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf/tls"
	"nvmecr/nvmf/tlspsk"
)

// TLS comes before everything else on a connection. The identity that a host names
// in the handshake has its own NQN and that of the subsystem, and the host has
// proved to have the key of that NQN: Connect may name no others.

// tlsHost is the host of a connection, as TLS has authenticated it.
type tlsHost struct {
	nqn, subNQN string
	psk         tlspsk.Key
}

// is reports whether these are the NQNs of the TLS identity. Without TLS any are.
func (h *tlsHost) is(nqn, subNQN string) bool {
	return h == nil || h.nqn == nqn && h.subNQN == subNQN
}

// SetPSKs replaces Config.PSKs. Before it returns it cuts off connected hosts whose key has changed
// or is gone. A target has TLS from its start to its end or never: SetPSKs fails if it would add
// the first key or remove the last one.
func (t *Target) SetPSKs(psks map[string]tlspsk.Key) error {
	if err := checkPSKs(psks); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	t.mu.Lock()
	differ := (len(t.psks) == 0) != (len(psks) == 0)
	if !differ {
		t.psks = maps.Clone(psks)
	}
	t.mu.Unlock()
	if differ {
		return fmt.Errorf("target: TLS cannot be switched on or off while it runs")
	}
	if err := t.cutInTime((*controller).revoked); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	return nil
}

func checkPSKs(psks map[string]tlspsk.Key) error {
	for nqn, k := range psks {
		if err := checkNQN(nqn); err != nil {
			return fmt.Errorf("TLS key of a host: %w", err)
		}
		if k.IsZero() {
			return fmt.Errorf("host %s has no TLS key", nqn)
		}
	}
	return nil
}

// secure makes the connection one with TLS where there are keys for it. It runs on
// the connection's thread, before anything is received.
func (c *conn) secure() error {
	t := c.target
	t.mu.Lock()
	with := len(t.psks) > 0
	t.mu.Unlock()
	if !with {
		return nil
	}
	ctx, stop := c.untilWoken()
	defer stop()
	// From here on the descriptor belongs to the relay.
	c.mu.Lock()
	fd, err := unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	var host *tlsHost
	plain, identity, err := tls.Server(ctx, fd, func(identity string) (secret []byte) {
		host, secret = t.hostOf(identity)
		return secret
	})
	if err != nil && identity != "" && host == nil {
		return fmt.Errorf("TLS: there is no key for %q: %w", identity, err)
	}
	if err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.fd
	c.fd, c.tls = plain, host
	return unix.Close(old)
}

// untilWoken returns a context that ends when the connection is woken. Before Connect that happens
// only if its time is up or the target ends.
func (c *conn) untilWoken() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ctx.Done():
		case <-c.woken:
			cancel()
		}
	}()
	return ctx, func() { cancel(); <-done }
}

// hostOf returns the host of a TLS identity and the secret of that identity. The secret is nil if
// there is no key for the host, or the identity is not in the form of NVMe.
func (t *Target) hostOf(identity string) (*tlsHost, []byte) {
	parts := strings.Split(identity, " ")
	if len(parts) != 3 {
		return nil, nil
	}
	t.mu.Lock()
	psk := t.psks[parts[1]]
	t.mu.Unlock()
	if psk.IsZero() {
		return nil, nil
	}
	want, secret, err := psk.Derive(parts[1], parts[2])
	if err != nil || want != identity {
		return nil, nil
	}
	return &tlsHost{nqn: parts[1], subNQN: parts[2], psk: psk}, secret
}
