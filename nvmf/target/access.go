package target

import (
	"fmt"
	"maps"
	"slices"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
)

// SetHosts replaces the host NQNs that may connect to a subsystem. Before it returns, also with
// ErrExecuting, it cuts off connected hosts that are not allowed any more.
func (t *Target) SetHosts(nqn string, hosts []string) error {
	return t.grant(nqn, func(s *subsystem) { s.hosts = slices.Clone(hosts) })
}

// SetAccess is SetHosts for the hosts and their keys; nil means the keys of the target. It also
// cuts off connected hosts whose key has changed.
func (t *Target) SetAccess(nqn string, hosts []string, keys map[string]dhchap.Keys) error {
	if err := checkKeys(keys); err != nil {
		return fmt.Errorf("target: subsystem %s: %w", nqn, err)
	}
	return t.grant(nqn, func(s *subsystem) {
		s.hosts, s.keys, s.inherits = slices.Clone(hosts), maps.Clone(keys), keys == nil
		if s.inherits {
			s.keys = t.keys
		}
	})
}

// SetKeys replaces Config.Keys. Before it returns it cuts off connected hosts whose key has changed
// or is gone.
func (t *Target) SetKeys(keys map[string]dhchap.Keys) error {
	if err := checkKeys(keys); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	t.mu.Lock()
	t.keys = maps.Clone(keys)
	for _, s := range t.subsystems {
		if s.inherits {
			s.keys = t.keys
		}
	}
	t.generation++
	t.mu.Unlock()
	if err := t.cutInTime((*controller).revoked); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	return nil
}

// Authenticates reports whether the hosts of a subsystem have to prove who they
// are.
func (t *Target) Authenticates(nqn string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.subsystems[nqn]
	return s != nil && len(s.keys) > 0
}

// grant changes the hosts that may connect to a subsystem.
func (t *Target) grant(nqn string, change func(*subsystem)) error {
	t.mu.Lock()
	sub := t.subsystems[nqn]
	if sub != nil {
		change(sub)
		t.generation++
	}
	t.mu.Unlock()
	if sub == nil {
		return fmt.Errorf("target: no subsystem %s: %w", nqn, nvmf.ErrNoSubsystem)
	}
	if err := t.cutInTime(func(c *controller) bool { return c.sub == sub && c.revoked() }); err != nil {
		return fmt.Errorf("target: subsystem %s: %w", nqn, err)
	}
	return nil
}

func checkKeys(keys map[string]dhchap.Keys) error {
	for nqn, k := range keys {
		if err := checkNQN(nqn); err != nil {
			return fmt.Errorf("key of a host: %w", err)
		}
		if k.Host.IsZero() {
			return fmt.Errorf("host %s has no key", nqn)
		}
	}
	return nil
}

// admits reports whether a host may connect. Target.mu is held.
func (s *subsystem) admits(nqn string) bool {
	if _, ok := s.keys[nqn]; !ok && len(s.keys) > 0 {
		return false
	}
	return allowed(s.hosts, nqn) && (len(s.hosts) > 0 || !s.listed)
}

// revoked reports whether the host of a controller may no longer connect in the way that it did: by
// this NQN, with these keys. Target.mu is held.
func (c *controller) revoked() bool {
	k, keyed := c.sub.keys[c.host.NQN]
	if !c.psk.Equal(c.target.psks[c.host.NQN]) {
		return true
	}
	return c.sub != discovery && (!c.sub.admits(c.host.NQN) || keyed != (c.keys != nil) || keyed && !k.Equal(*c.keys))
}

func allowed(hosts []string, nqn string) bool { return len(hosts) == 0 || slices.Contains(hosts, nqn) }
