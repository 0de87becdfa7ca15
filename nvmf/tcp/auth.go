package tcp

import (
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

// authenticate authenticates the host if the result of Connect asks for it. Each
// connection of each queue authenticates.
func (c *conn) authenticate(o *Options, q queueID, result uint32) error {
	a := initiator.Authentication{HostNQN: o.HostNQN, SubNQN: q.subNQN, Keys: o.Keys, Offer: o.AuthOffer}
	switch {
	case result&nvme.ConnectAuthSecureChannel != 0:
		return a.SecureChannel()
	case result&nvme.ConnectAuthTransaction != 0 && a.Keys.Host.IsZero():
		return a.NoSecret()
	case result&nvme.ConnectAuthTransaction != 0:
		if err := c.prove(dhchap.NewHost(dhchap.Config(a))); err != nil {
			return a.Failed(err)
		}
	// Discovery controllers need not authenticate: the log only has addresses to try.
	case !a.Keys.Controller.IsZero() && q.subNQN != nvme.DiscoveryNQN:
		return a.NotAsked()
	}
	return nil
}

// prove runs the host's end of DH-HMAC-CHAP.
func (c *conn) prove(host *dhchap.Host) error {
	buffer := make([]byte, dhchap.MaxMessage)
	next := host.Start()
	for {
		if err := c.secure("Authentication Send", nvme.FabricsAuthSend, next); err != nil {
			return err
		}
		if host.Done() { // the last message has told the target that its proof is right
			return nil
		}
		clear(buffer)
		if err := c.secure("Authentication Receive", nvme.FabricsAuthReceive, buffer); err != nil {
			return err
		}
		var err error
		if next, err = host.Answer(buffer); err != nil {
			if next != nil { // tells the target the reason; the connection ends in any case
				_ = c.secure("Authentication Send", nvme.FabricsAuthSend, next)
			}
			return err
		}
		if next == nil {
			return nil
		}
	}
}

// secure executes an Authentication Send or Receive command.
func (c *conn) secure(what string, fctype uint8, message []byte) error {
	var sqe nvme.SQE
	sqe.ResetFabrics(fctype, 0)
	sqe.SetSecurity(nvme.Security{
		Protocol: nvme.SecurityProtocolNVMe, Specific: nvme.SecuritySpecificAuth, Length: uint32(len(message)),
	})
	_, err := c.exec(what, &sqe, message, fctype == nvme.FabricsAuthSend)
	return err
}
