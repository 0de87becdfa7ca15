package processfs

import (
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// AwaitRelays has a process wait for what others of its run on this host have taken on to write to files, and those for it.
func AwaitRelays(p *posixshim.Process, cfg *config.Config) {
	group := store.LockGroup(cfg.Run)
	if group == "" {
		return
	}
	c := &owner.Relays{Group: group, Timeout: cfg.Timeout}
	p.Await = c.Await
	p.Relaying = func(begins bool) {
		// Where it fails, others may find for a moment less than what was written.
		if begins {
			_ = c.Listen(func() { p.Guard("the writing of relayed output", p.FinishRelayed) })
		} else {
			_ = c.Close()
		}
	}
}
