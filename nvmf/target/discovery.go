package target

import (
	"maps"
	"slices"
	"strconv"

	"nvmecr/nvmf/nvme"
)

// discovery is the discovery subsystem. It has no namespaces and no I/O queues.
var discovery = func() *subsystem {
	s := &subsystem{nqn: nvme.DiscoveryNQN, serial: serialOf(nvme.DiscoveryNQN), model: "nvmecr discovery"}
	s.namespaces.Store(&map[uint32]*namespace{})
	return s
}()

// discoveryLog lists the subsystems the host may connect to, with the address at which the host has
// reached the target: it may be unable to reach other addresses of this machine.
func (c *conn) discoveryLog() []byte {
	at := c.own
	family := uint8(nvme.FamilyIPv4)
	if at.Addr().Is6() {
		family = nvme.FamilyIPv6
	}
	t := c.target
	t.mu.Lock()
	defer t.mu.Unlock()
	log := make([]byte, nvme.DiscoveryHeaderSize)
	var records uint64
	for _, nqn := range slices.Sorted(maps.Keys(t.subsystems)) {
		if !t.subsystems[nqn].admits(c.ctrl.host.NQN) {
			continue
		}
		var e nvme.DiscoveryEntry
		e.SetSubsystem(nvme.SubtypeNVM, family, 1, nqn, at.Addr().WithZone("").String(), strconv.Itoa(int(at.Port())))
		if c.tls != nil {
			e.RequireTLS()
		}
		log = append(log, e[:]...)
		records++
	}
	(*nvme.DiscoveryHeader)(log).Set(t.generation, records)
	return log
}
