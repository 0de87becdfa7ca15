package initiator

import (
	"errors"
	"fmt"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
)

// An Authentication describes an authentication between a host and a subsystem. Its
// methods return errors for the ways in which it can fail. Each error says which side
// has found the fault, and what the user can do.
type Authentication dhchap.Config

// Check returns an error if the keys cannot authenticate the host.
func (a Authentication) Check() error {
	if a.Keys.Host.IsZero() && !a.Keys.Controller.IsZero() {
		return fmt.Errorf("%w: there is a secret of the target (--dhchap-ctrl-secret) and none of this host; give one with --dhchap-secret", nvmf.ErrAuthentication)
	}
	return nil
}

// NoSecret returns the error for a target that requires authentication of a host
// without a secret.
func (a Authentication) NoSecret() error {
	return fmt.Errorf("%w: subsystem %s requires it of host %s, and there is no secret; give one with --dhchap-secret",
		nvmf.ErrAuthentication, a.SubNQN, a.HostNQN)
}

// NotAsked returns the error for a target that does not authenticate, although the host
// requires a proof of the target.
func (a Authentication) NotAsked() error {
	return fmt.Errorf("%w: subsystem %s was to prove who it is (--dhchap-ctrl-secret), but its target does not authenticate; "+
		"give the target keys, or leave the secret out", nvmf.ErrAuthentication, a.SubNQN)
}

// SecureChannel returns the error for a target that requires secure channel
// concatenation.
func (a Authentication) SecureChannel() error {
	return fmt.Errorf("subsystem %s requires a secure channel (TLS): %w", a.SubNQN, nvmf.ErrUnsupported)
}

// Failed returns the error for a failure during the exchange. err is a *dhchap.Error,
// the status of a command, or the loss of the connection.
func (a Authentication) Failed(err error) error {
	var failed *dhchap.Error
	var status *nvmf.StatusError
	switch {
	case errors.As(err, &failed) && failed.Peer && failed.Reason == dhchap.Failed:
		remedy := "check that --dhchap-secret has the key that the target has for this host"
		if !a.Keys.Controller.IsZero() {
			remedy += ", and that the target has a key of its own"
		}
		return fmt.Errorf("%w: the target refuses host %s for subsystem %s; %s", nvmf.ErrAuthentication, a.HostNQN, a.SubNQN, remedy)
	case errors.As(err, &failed) && failed.Peer, errors.As(err, &status):
		return fmt.Errorf("%w: the target refuses host %s for subsystem %s: %w", nvmf.ErrAuthentication, a.HostNQN, a.SubNQN, err)
	case failed != nil && failed.Reason == dhchap.Failed:
		return fmt.Errorf("%w: host %s refuses the target of subsystem %s; check that --dhchap-ctrl-secret has the key that the target proves "+
			"itself with: %w", nvmf.ErrAuthentication, a.HostNQN, a.SubNQN, err)
	case failed != nil:
		return fmt.Errorf("%w: host %s refuses the target of subsystem %s: %w", nvmf.ErrAuthentication, a.HostNQN, a.SubNQN, err)
	case errors.Is(err, nvmf.ErrConnectionLost):
		// Linux's target queues Failure1 for the host, but in most cases resets the
		// connection before the host can read it. A crashed target looks the same.
		return fmt.Errorf("the connection ended while host %s authenticated, which is what some targets do with a host that has the wrong key "+
			"(--dhchap-secret): %w", a.HostNQN, err)
	}
	return err
}
