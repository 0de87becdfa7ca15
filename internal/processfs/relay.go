package processfs

import (
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// AwaitRelays makes a process wait for data that other processes of its run on this host relay to files, and these for its data.
func AwaitRelays(p *posixshim.Process, cfg *config.Config) {
	group := store.LockGroup(cfg.Run)
	if group == "" {
		return
	}
	c := &owner.Relays{Group: group, Timeout: cfg.Timeout}
	p.Await = c.Await
	p.Relaying = func(begins bool) {
		// On an error, others may briefly read less data than was written.
		if begins {
			_ = c.Listen(func() { p.Guard("the writing of relayed output", p.FinishRelayed) })
		} else {
			_ = c.Close()
		}
	}
}
