package microfs

import (
	"errors"
	"math/rand/v2"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
)

// media computes one of the contents that a device may have after a crash. It follows a trace, and makes
// a random choice where the outcome is not determined:
//
//	a write in flight, or refused       nothing of it, all, a part, a mixture of sectors
//	a write with a lost connection      the same, now or at any later event, or never
//	a deallocation                      zeros in all, a part or nothing of its blocks
//	a block not flushed since a write   any of the versions it had
type media struct {
	r    *rand.Rand
	lba  int
	data []byte // what reads return
	// versions has all contents of each block since it was last durable. The durable content is the
	// first. Without a volatile cache versions is nil.
	versions map[int][][]byte
	flight   map[int]blocktest.Event   // submitted, by ID
	late     map[int][]blocktest.Event // land before the event with that index
}

// crashMedia turns data, the content before the trace, into a content after a crash at event k.
func crashMedia(r *rand.Rand, data []byte, tr *blocktest.Trace, k, lba int, cache bool) {
	m := &media{r: r, lba: lba, data: data, flight: map[int]blocktest.Event{}, late: map[int][]blocktest.Event{}}
	if cache {
		m.versions = map[int][][]byte{}
	}
	for i, e := range tr.Events[:k] {
		for _, l := range m.late[i] {
			m.part(l)
		}
		if e.Completed {
			m.complete(e, i+1+r.IntN(len(tr.Events)-i))
		} else {
			if e.Opcode == nvmf.Deallocate {
				e.Data = make([]byte, int(e.Blocks)*lba)
			}
			m.flight[e.ID] = e
		}
	}
	for _, e := range m.inFlight() {
		m.part(e)
	}
	m.losePower()
}

// inFlight returns the writes in flight, in any order.
func (m *media) inFlight() (list []blocktest.Event) {
	last := 0
	for id := range m.flight {
		last = max(last, id)
	}
	for id := range last + 1 { // not a loop over the map: its order would not depend on the seed
		if e, ok := m.flight[id]; ok && e.Data != nil {
			list = append(list, e)
		}
	}
	m.r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// complete handles a completion. later is the index of the event before which the device may execute the
// command if its connection was lost.
func (m *media) complete(e blocktest.Event, later int) {
	s := m.flight[e.ID]
	delete(m.flight, e.ID)
	switch {
	case s.Opcode == nvmf.Flush && e.Err == nil:
		clear(m.versions) // no write was in flight with the Flush, see FS.flushDevice
	case s.Data == nil:
	case e.Err == nil && s.Opcode == nvmf.Deallocate:
		m.part(s)
	case e.Err == nil:
		m.write(int(s.LBA)*m.lba, s.Data, s.FUA)
	case !errors.Is(e.Err, nvmf.ErrConnectionLost):
		m.part(s)
	default:
		switch m.r.IntN(3) {
		case 0:
			m.part(s)
		case 1:
			m.late[later] = append(m.late[later], s)
		}
	}
}

func (m *media) write(at int, b []byte, fua bool) {
	if m.versions != nil {
		for o := 0; o < len(b); o += m.lba {
			block, p := (at+o)/m.lba, m.data[at+o:at+o+m.lba]
			switch {
			case fua:
				delete(m.versions, block)
			case m.versions[block] == nil:
				m.versions[block] = [][]byte{append([]byte(nil), p...), b[o : o+m.lba]}
			default:
				m.versions[block] = append(m.versions[block], b[o:o+m.lba])
			}
		}
	}
	copy(m.data[at:], b)
}

// part stores a random part of a write.
func (m *media) part(e blocktest.Event) {
	at, b := int(e.LBA)*m.lba, e.Data
	c := append([]byte(nil), m.data[at:at+len(b)]...)
	switch n := m.r.IntN(len(b) + 1); m.r.IntN(5) {
	case 0:
		return
	case 1:
		copy(c, b)
	case 2:
		copy(c, b[:n])
	case 3:
		copy(c[n:], b[n:])
	default:
		for o := 0; o < len(b); o += 512 {
			if m.r.IntN(2) == 0 {
				copy(c[o:o+512], b[o:])
			}
		}
	}
	m.write(at, c, false)
}

// losePower chooses one version of each block that was not durable: always the oldest, always or mostly
// the newest, or any.
func (m *media) losePower() {
	mode := m.r.IntN(4)
	for block := range len(m.data) / m.lba {
		v := m.versions[block]
		if v == nil {
			continue
		}
		i := len(v) - 1
		switch {
		case mode == 0:
			i = 0
		case mode == 1, mode == 2 && m.r.IntN(10) == 0:
			i = m.r.IntN(len(v))
		}
		copy(m.data[block*m.lba:], v[i])
	}
}
