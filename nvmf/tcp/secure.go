package tcp

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
	"nvmecr/nvmf/tls"
)

// secure starts TLS on a connection to a subsystem. It takes fd over, and returns the descriptor to use instead.
func secure(ctx context.Context, fd int, o *Options, subNQN string) (int, error) {
	identity, secret, err := o.PSK.Derive(o.HostNQN, subNQN)
	if err != nil {
		return -1, errors.Join(fmt.Errorf("%w: %w", nvmf.ErrUnsupported, err), ownfd.Close(fd))
	}
	fd, err = tls.Client(ctx, fd, tls.Key{Identity: identity, Secret: secret})
	switch {
	case errors.Is(err, tls.ErrUnavailable):
		err = fmt.Errorf("%w: %w", nvmf.ErrUnsupported, err)
	case errors.Is(err, tls.ErrNotTLS):
		err = fmt.Errorf("%w: subsystem %s was to be reached by TLS (--tls-psk), but its target does not use TLS at this address; "+
			"have it listen with TLS, or leave the key out: %w", nvmf.ErrAuthentication, subNQN, err)
	case errors.Is(err, tls.ErrRefused):
		err = fmt.Errorf("%w: TLS of host %s with subsystem %s; check that --tls-psk has the key that the target has for this host, "+
			"and --hostnqn its name: %w", nvmf.ErrAuthentication, o.HostNQN, subNQN, err)
	case err != nil: // it ended, as a target without TLS does, or takes too long
		err = fmt.Errorf("%w: TLS (--tls-psk) with subsystem %s (does its target use TLS at this address?): %w", nvmf.ErrUnreachable, subNQN, err)
	}
	return fd, err
}

// tlsHint returns an addition to the error of a connection that ended before its first
// answer, as a target with TLS ends connections without TLS.
func (c *conn) tlsHint(o *Options) string {
	if c.ready || !o.PSK.IsZero() {
		return ""
	}
	return "; a target that wants TLS, too, ends connections without it: for that there is --tls-psk"
}
