package target

import "net/netip"

// An unauthenticated connection is one whose host is not admitted to a subsystem. The
// host has not sent Connect yet, has not completed TLS or its authentication, or uses
// discovery, which every host may. Such connections must not use up the connections
// that admitted hosts need, and those of one address must not use up those of all
// others. When there are too many, a new one ends the oldest one: a host with a key
// authenticates within milliseconds.

// maxUnauthenticated returns how many unauthenticated connections there may be, and how
// many of one address.
func (t *Target) maxUnauthenticated() (all, each int) {
	return max(1, t.maxConns/2), max(1, t.maxConns/4)
}

// makeSpace ends an unauthenticated connection if there are too many, and reports whether
// another one of peer may be admitted. Target.mu is held.
func (t *Target) makeSpace(peer netip.Addr) bool {
	all, each := t.maxUnauthenticated()
	places, unauthenticated := 0, 0
	byAddress := make(map[netip.Addr]int)
	for c := range t.conns {
		switch {
		case c.evicted:
			continue
		case !c.authenticated:
			unauthenticated++
			byAddress[c.peer.Addr()]++
		}
		places++
	}
	switch {
	case byAddress[peer] >= each:
		t.evict(func(c *conn) bool { return c.peer.Addr() == peer })
	case unauthenticated >= all, places >= t.maxConns:
		limit := 0
		for _, n := range byAddress {
			limit = max(limit, n)
		}
		return t.evict(func(c *conn) bool { return byAddress[c.peer.Addr()] == limit })
	}
	return true
}

// evict ends the oldest unauthenticated connection for which match is true; it returns false if
// there is none. Target.mu is held.
func (t *Target) evict(match func(*conn) bool) bool {
	var oldest *conn
	for c := range t.conns {
		if !c.authenticated && !c.evicted && match(c) && (oldest == nil || c.number < oldest.number) {
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
