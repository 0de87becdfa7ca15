package target

import "net/netip"

// A guest is a connection whose host has not been let into a subsystem: it has yet to
// send Connect, to finish TLS or to authenticate, or it only asks for discovery, which
// anybody may. Guests must not take the places of hosts that have proved themselves,
// nor those of an address all others'. A guest too many ends the oldest one: a host
// is let in within milliseconds, and who only holds places is not.

// maxGuests is how many guests there may be, and how many of one address.
func (t *Target) maxGuests() (all, each int) { return max(1, t.maxConns/2), max(1, t.maxConns/4) }

// makeRoom ends guests so that there is room for another one at peer, and reports
// whether there is. Target.mu is held.
func (t *Target) makeRoom(peer netip.Addr) bool {
	all, each := t.maxGuests()
	places, guests := 0, 0
	byAddress := make(map[netip.Addr]int)
	for c := range t.conns {
		switch {
		case c.evicted:
			continue
		case !c.welcome:
			guests++
			byAddress[c.peer.Addr()]++
		}
		places++
	}
	switch {
	case byAddress[peer] >= each:
		t.evict(func(c *conn) bool { return c.peer.Addr() == peer })
	case guests >= all, places >= t.maxConns:
		most := 0
		for _, n := range byAddress {
			most = max(most, n)
		}
		return t.evict(func(c *conn) bool { return byAddress[c.peer.Addr()] == most })
	}
	return true
}

// evict ends the oldest guest that is meant; false without one. Target.mu is held.
func (t *Target) evict(meant func(*conn) bool) bool {
	var oldest *conn
	for c := range t.conns {
		if !c.welcome && !c.evicted && meant(c) && (oldest == nil || c.number < oldest.number) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	oldest.evicted = true
	oldest.hangUp()
	return true
}
