package tcp

import (
	"errors"
	"fmt"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
)

// authenticate does what the result of Connect asks for. Every queue does, with
// every connection anew.
func (c *conn) authenticate(o *Options, q queueID, result uint32) error {
	switch {
	case result&nvme.ConnectAuthSecureChannel != 0:
		return fmt.Errorf("subsystem %s requires a secure channel (TLS): %w", q.subNQN, nvmf.ErrUnsupported)
	case result&nvme.ConnectAuthTransaction != 0:
		return c.prove(o, q)
	// What discovery tells is only where to look, and none authenticates.
	case !o.Keys.Controller.IsZero() && q.subNQN != nvme.DiscoveryNQN:
		return fmt.Errorf("%w: subsystem %s was to prove who it is (--dhchap-ctrl-secret), but its target does not authenticate; "+
			"give the target keys, or leave the secret out", nvmf.ErrAuthentication, q.subNQN)
	}
	return nil
}

// prove runs the host's end of DH-HMAC-CHAP.
func (c *conn) prove(o *Options, q queueID) error {
	if o.Keys.Host.IsZero() {
		return fmt.Errorf("%w: subsystem %s requires it of host %s, and there is no secret; give one with --dhchap-secret",
			nvmf.ErrAuthentication, q.subNQN, o.HostNQN)
	}
	host := dhchap.NewHost(dhchap.Config{HostNQN: o.HostNQN, SubNQN: q.subNQN, Keys: o.Keys, Offer: o.AuthOffer})
	buffer := make([]byte, dhchap.MaxMessage)
	next := host.Start()
	for {
		if err := c.secure("Authentication Send", nvme.FabricsAuthSend, next); err != nil {
			return unproved(o, q, err)
		}
		if host.Done() { // what was sent is that we accept the target
			return nil
		}
		clear(buffer)
		if err := c.secure("Authentication Receive", nvme.FabricsAuthReceive, buffer); err != nil {
			return unproved(o, q, err)
		}
		var err error
		if next, err = host.Answer(buffer); err != nil {
			if next != nil { // as a courtesy: the connection ends either way
				_ = c.secure("Authentication Send", nvme.FabricsAuthSend, next)
			}
			return unproved(o, q, err)
		}
		if next == nil {
			return nil
		}
	}
}

// secure runs Authentication Send or Receive.
func (c *conn) secure(what string, fctype uint8, message []byte) error {
	var sqe nvme.SQE
	sqe.ResetFabrics(fctype, 0)
	sqe.SetSecurity(nvme.Security{
		Protocol: nvme.SecurityProtocolNVMe, Specific: nvme.SecuritySpecificAuth, Length: uint32(len(message)),
	})
	_, err := c.exec(what, &sqe, message, fctype == nvme.FabricsAuthSend)
	return err
}

// unproved says which side an authentication failed on, and what to do.
func unproved(o *Options, q queueID, err error) error {
	var failed *dhchap.Error
	var status *nvmf.StatusError
	switch {
	case errors.As(err, &failed) && failed.Peer && failed.Reason == dhchap.Failed:
		remedy := "check that --dhchap-secret has the key that the target has for this host"
		if !o.Keys.Controller.IsZero() {
			remedy += ", and that the target has a key of its own"
		}
		return fmt.Errorf("%w: the target refuses host %s for subsystem %s; %s", nvmf.ErrAuthentication, o.HostNQN, q.subNQN, remedy)
	case errors.As(err, &failed) && failed.Peer, errors.As(err, &status):
		return fmt.Errorf("%w: the target refuses host %s for subsystem %s: %w", nvmf.ErrAuthentication, o.HostNQN, q.subNQN, err)
	case failed != nil && failed.Reason == dhchap.Failed:
		return fmt.Errorf("%w: host %s refuses the target of subsystem %s; check that --dhchap-ctrl-secret has the key that the target proves "+
			"itself with: %w", nvmf.ErrAuthentication, o.HostNQN, q.subNQN, err)
	case failed != nil:
		return fmt.Errorf("%w: host %s refuses the target of subsystem %s: %w", nvmf.ErrAuthentication, o.HostNQN, q.subNQN, err)
	case errors.Is(err, nvmf.ErrConnectionLost):
		// Linux's target means to say Failure1, and mostly resets the connection
		// before that is fetched. A target that crashed looks the same.
		return fmt.Errorf("the connection ended while host %s authenticated, which is what some targets do with a host that has the wrong key "+
			"(--dhchap-secret): %w", o.HostNQN, err)
	}
	return err
}
