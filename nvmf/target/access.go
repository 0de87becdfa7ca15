package target

import (
	"fmt"
	"maps"
	"slices"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
)

// SetHosts replaces the host NQNs that may connect to a subsystem. Hosts that
// are connected and no longer allowed are cut off before it returns, also with
// ErrExecuting.
func (t *Target) SetHosts(nqn string, hosts []string) error {
	return t.grant(nqn, func(s *subsystem) { s.hosts = slices.Clone(hosts) })
}

// SetAccess is SetHosts that replaces the keys too; nil stands for those of the
// target. A host that is connected and has another key now is cut off as well.
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

// SetKeys replaces Config.Keys. Hosts that are connected and whose key is
// another one now, or gone, are cut off before it returns.
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

// grant changes who may connect to a subsystem.
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

// revoked reports whether the host of a controller has lost the right to connect as it
// did. Target.mu is held.
func (c *controller) revoked() bool {
	k, keyed := c.sub.keys[c.host.NQN]
	if !c.psk.Equal(c.target.psks[c.host.NQN]) {
		return true
	}
	return c.sub != discovery && (!c.sub.admits(c.host.NQN) || keyed != (c.keys != nil) || keyed && !k.Equal(*c.keys))
}

func allowed(hosts []string, nqn string) bool { return len(hosts) == 0 || slices.Contains(hosts, nqn) }
