package target

import (
	"bytes"
	"maps"
	"slices"

	"nvmecr/nvmf/nvme"
)

// hostID is a Host Identifier, by which reservations know a host.
type hostID = [16]byte

// maxRegistrants limits the hosts that are registered with a namespace; the report of so many has
// maxReport bytes. nvmecr removes the registrations of earlier runs in each Reserve.
const (
	maxRegistrants = 127
	maxReport      = nvme.ReservationReportHeader + maxRegistrants*nvme.ReservationReportEntry
)

// registry has the registrants of a namespace and the holder of its reservation (Base Specification
// 2.0, section 8.19). It lasts as long as the namespace is served: reservations do not persist
// through power loss. Its methods return the status of the command. A command that fails changes
// nothing.
type registry struct {
	keys       map[hostID]uint64
	kind       nvme.ReservationType
	holder     hostID // unset if kind is 0 or a type that all registrants hold
	generation uint32
}

// registered reports whether a host is a registrant with that key.
func (r *registry) registered(host hostID, key uint64) bool {
	k, ok := r.keys[host]
	return ok && k == key
}

// holds reports whether a registrant holds the reservation.
func (r *registry) holds(host hostID) bool {
	return r.kind.AllRegistrants() || r.kind != 0 && r.holder == host
}

// register is Reservation Register.
func (r *registry) register(host hostID, c nvme.ReservationCommand, keys *nvme.ReservationKeys) nvme.Status {
	old, known := r.keys[host]
	matches := known && (c.IgnoreKey || old == keys.Current())
	switch {
	case c.Persist != nvme.PersistNoChange && c.Persist != nvme.PersistOff:
		return nvme.StatusInvalidField | nvme.DNR
	case c.Action != nvme.ReservationUnregister && keys.Other() == 0:
		return nvme.StatusInvalidField | nvme.DNR
	case c.Action == nvme.ReservationRegister:
		if known && old != keys.Other() {
			return nvme.StatusReservation | nvme.DNR
		}
	case c.Action == nvme.ReservationUnregister:
		if !matches {
			return nvme.StatusReservation | nvme.DNR
		}
		r.unregister(host)
		r.generation++
		return 0
	case c.Action == nvme.ReservationReplace:
		if !matches && (known || !c.IgnoreKey) {
			return nvme.StatusReservation | nvme.DNR
		}
	default:
		return nvme.StatusInvalidField | nvme.DNR
	}
	if !known && len(r.keys) == maxRegistrants {
		return nvme.StatusInternalError | nvme.DNR
	}
	if r.keys == nil {
		r.keys = map[hostID]uint64{}
	}
	r.keys[host] = keys.Other()
	r.generation++
	return 0
}

// unregister removes a registrant, and the reservation if the registrant holds it.
func (r *registry) unregister(host hostID) {
	held := r.holds(host)
	delete(r.keys, host)
	if held && (!r.kind.AllRegistrants() || len(r.keys) == 0) {
		r.kind, r.holder = 0, hostID{}
	}
}

// acquire is Reservation Acquire. It returns the hosts that were preempted.
func (r *registry) acquire(host hostID, c nvme.ReservationCommand, keys *nvme.ReservationKeys) ([]hostID, nvme.Status) {
	switch {
	case c.IgnoreKey, !c.Type.Valid(), c.Action > nvme.ReservationPreemptAbort:
		return nil, nvme.StatusInvalidField | nvme.DNR
	case !r.registered(host, keys.Current()):
		return nil, nvme.StatusReservation | nvme.DNR
	case c.Action != nvme.ReservationAcquire:
		return r.preempt(host, c.Type, keys.Other())
	case r.kind == 0:
		r.take(host, c.Type)
	case !r.holds(host) || r.kind != c.Type:
		return nil, nvme.StatusReservation | nvme.DNR
	}
	return nil, 0
}

func (r *registry) take(host hostID, kind nvme.ReservationType) { r.kind, r.holder = kind, host }

// preempt unregisters the hosts with a key, and takes the reservation if it is
// theirs.
func (r *registry) preempt(host hostID, kind nvme.ReservationType, key uint64) ([]hostID, nvme.Status) {
	everyone := r.kind.AllRegistrants() && key == 0
	if key == 0 && !everyone {
		return nil, nvme.StatusInvalidField | nvme.DNR
	}
	takes := everyone
	var preempted []hostID
	found := everyone
	for h, k := range r.keys {
		if !everyone && k != key {
			continue
		}
		found = true
		if !r.kind.AllRegistrants() && r.holds(h) {
			takes = true
		}
		if h != host {
			preempted = append(preempted, h)
		}
	}
	if !found {
		return nil, nvme.StatusReservation | nvme.DNR
	}
	for _, h := range preempted {
		r.unregister(h)
	}
	if takes {
		r.take(host, kind)
	}
	r.generation++
	return preempted, 0
}

// release is Reservation Release.
func (r *registry) release(host hostID, c nvme.ReservationCommand, key *nvme.ReservationKey) nvme.Status {
	switch {
	case c.IgnoreKey, c.Action > nvme.ReservationClear:
		return nvme.StatusInvalidField | nvme.DNR
	case !r.registered(host, key.Current()):
		return nvme.StatusReservation | nvme.DNR
	case c.Action == nvme.ReservationClear:
		r.keys, r.kind, r.holder = nil, 0, hostID{}
		r.generation++
	case r.kind == 0 || !r.holds(host):
		// Nothing to release is no error.
	case r.kind != c.Type:
		return nvme.StatusInvalidField | nvme.DNR
	default:
		r.kind, r.holder = 0, hostID{}
	}
	return 0
}

// report is Reservation Report, in the order of host identifiers.
func (r *registry) report() *nvme.ReservationStatus {
	s := &nvme.ReservationStatus{Generation: r.generation, Type: r.kind}
	hosts := slices.SortedFunc(maps.Keys(r.keys), func(a, b hostID) int { return bytes.Compare(a[:], b[:]) })
	for _, h := range hosts {
		s.Registrants = append(s.Registrants, nvme.Registrant{
			CNTLID: nvme.CNTLIDDynamic, Holder: r.holds(h), Key: r.keys[h], HostID: h})
	}
	return s
}

// guard returns the reservation in the form that the data path uses, nil if there is none.
func (r *registry) guard() *guard {
	if r.kind == 0 {
		return nil
	}
	g := &guard{kind: r.kind, holder: r.holder}
	if r.kind.AllRegistrants() || r.kind.RegistrantsOnly() {
		g.registrants = maps.Clone(r.keys)
	}
	return g
}

// guard is a reservation as the data path sees it. It does not change.
type guard struct {
	kind        nvme.ReservationType
	holder      hostID
	registrants map[hostID]uint64 // of the types that give them access
}

// same reports whether two guards give the same hosts access.
func (g *guard) same(other *guard) bool {
	if g == nil || other == nil {
		return g == other
	}
	return g.kind == other.kind && g.holder == other.holder && maps.Equal(g.registrants, other.registrants)
}

// writes reports whether a host may change the namespace.
func (g *guard) writes(host hostID) bool {
	if g == nil {
		return true
	}
	if g.kind.AllRegistrants() || g.kind.RegistrantsOnly() {
		_, ok := g.registrants[host]
		return ok
	}
	return g.holder == host
}

// reads reports whether a host may read the namespace.
func (g *guard) reads(host hostID) bool {
	return g == nil || !g.kind.ExclusiveAccess() || g.writes(host)
}

// permits reports whether a host may execute an I/O command. It does not judge the reservation
// commands, which the registry does. Flush counts as a write.
func (g *guard) permits(host hostID, opcode uint8) bool {
	switch opcode {
	case nvme.IORead, nvme.IOCompare, nvme.IOVerify:
		return g.reads(host)
	case nvme.IOFlush, nvme.IOWrite, nvme.IOWriteZeroes, nvme.IOWriteUncorrectable, nvme.IODSM:
		return g.writes(host)
	}
	return true
}
