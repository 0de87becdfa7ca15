package processfs

import (
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// AwaitCarried has a process wait for what others of its run on this host have taken on to write to files, and those for it.
func AwaitCarried(p *posixshim.Process, cfg *config.Config) {
	group := store.LockGroup(cfg.Run)
	if group == "" {
		return
	}
	c := &owner.Carriers{Group: group, Timeout: cfg.Timeout}
	p.Await = c.Await
	p.Carrying = func(begins bool) {
		// Where it fails, others may find for a moment less than what was written.
		if begins {
			_ = c.Listen(func() { p.Guard("the writing of carried output", p.FinishCarried) })
		} else {
			_ = c.Close()
		}
	}
}
