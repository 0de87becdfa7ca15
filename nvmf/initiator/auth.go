package initiator

import (
	"errors"
	"fmt"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
)

// An Authentication is one between a host and a subsystem that cannot be or has
// failed. Its errors say which side that is on, and what to do.
type Authentication dhchap.Config

// Check refuses keys that nothing can be proved with.
func (a Authentication) Check() error {
	if a.Keys.Host.IsZero() && !a.Keys.Controller.IsZero() {
		return fmt.Errorf("%w: there is a secret of the target (--dhchap-ctrl-secret) and none of this host; give one with --dhchap-secret", nvmf.ErrAuthentication)
	}
	return nil
}

// NoSecret is for a target that asks for a proof where there is no secret.
func (a Authentication) NoSecret() error {
	return fmt.Errorf("%w: subsystem %s requires it of host %s, and there is no secret; give one with --dhchap-secret",
		nvmf.ErrAuthentication, a.SubNQN, a.HostNQN)
}

// NotAsked is for a target that was to prove itself, and does not do that.
func (a Authentication) NotAsked() error {
	return fmt.Errorf("%w: subsystem %s was to prove who it is (--dhchap-ctrl-secret), but its target does not authenticate; "+
		"give the target keys, or leave the secret out", nvmf.ErrAuthentication, a.SubNQN)
}

// SecureChannel is for a target that wants TLS with keys from the authentication.
func (a Authentication) SecureChannel() error {
	return fmt.Errorf("subsystem %s requires a secure channel (TLS): %w", a.SubNQN, nvmf.ErrUnsupported)
}

// Failed is for what went wrong between the two: a *dhchap.Error, the status of
// a command, or the loss of the connection.
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
		// Linux's target means to say Failure1, and mostly resets the connection
		// before that is fetched. A target that crashed looks the same.
		return fmt.Errorf("the connection ended while host %s authenticated, which is what some targets do with a host that has the wrong key "+
			"(--dhchap-secret): %w", a.HostNQN, err)
	}
	return err
}
