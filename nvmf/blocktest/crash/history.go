package crash

import (
	"bytes"
	"errors"
	"maps"
	"slices"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
)

// History is a trace followed up to some event. Not safe for concurrent use.
type History struct {
	data     []byte // what reads return: every completed write
	lba      int
	volatile bool

	flight []blocktest.Event // writes, and deallocations as writes of zeros, submitted and not completed, in order
	late   []blocktest.Event // whose connection was lost
	// refused holds what LBAs may be of writes that failed, or for all that they were
	// deallocated.
	refused map[nvmf.LBA][][]byte
	// unflushed holds the versions of LBAs since the last flush, the durable
	// one first; the last is what data holds.
	unflushed map[nvmf.LBA][]version
	seq       int         // of the last completed write
	undo      []version   // what Restore puts back: seq is the LBA
	flushes   map[int]int // in flight: what seq was at their submission

	slots []slot // scratch of Images
}

// version is one content of an LBA, seq says since when.
type version struct {
	seq  int
	data []byte
}

// NewHistory begins before the first event of a trace. data is the content of
// the device then; the History changes it as it goes along.
func NewHistory(data []byte, lba nvmf.Bytes, volatile bool) *History {
	return &History{
		data: data, lba: int(lba), volatile: volatile,
		refused: map[nvmf.LBA][][]byte{}, unflushed: map[nvmf.LBA][]version{}, flushes: map[int]int{},
	}
}

// Step follows the trace by one event.
func (h *History) Step(e blocktest.Event) {
	switch {
	case e.Opcode == nvmf.Flush && !e.Completed:
		h.flushes[e.ID] = h.seq
	case e.Opcode == nvmf.Flush:
		if e.Err == nil {
			h.flushed(h.flushes[e.ID])
		}
		delete(h.flushes, e.ID)
	case e.Opcode != nvmf.Write && e.Opcode != nvmf.Deallocate:
	case !e.Completed:
		if e.Opcode == nvmf.Deallocate {
			e.Data = make([]byte, int(e.Blocks)*h.lba)
		}
		h.flight = append(h.flight, e)
	default:
		h.complete(e)
	}
}

func (h *History) complete(e blocktest.Event) {
	i := slices.IndexFunc(h.flight, func(f blocktest.Event) bool { return f.ID == e.ID })
	w := h.flight[i]
	h.flight = slices.Delete(h.flight, i, i+1)
	switch {
	case e.Err == nil:
		h.seq++
		h.each(w, func(lba nvmf.LBA, b []byte, fua bool) {
			old := bytes.Clone(h.at(lba))
			h.store(lba, b, fua)
			if w.Opcode == nvmf.Deallocate { // its content is not promised
				h.refused[lba] = append(h.refused[lba], old)
			}
		})
	case errors.Is(e.Err, nvmf.ErrConnectionLost):
		h.late = append(h.late, w)
	default:
		h.each(w, func(lba nvmf.LBA, b []byte, _ bool) { h.refused[lba] = append(h.refused[lba], b) })
	}
}

// each calls f for every LBA of a write.
func (h *History) each(w blocktest.Event, f func(lba nvmf.LBA, b []byte, fua bool)) {
	for i := range w.Blocks {
		f(w.LBA+i, w.Data[int(i)*h.lba:][:h.lba], w.FUA)
	}
}

func (h *History) at(lba nvmf.LBA) []byte { return h.data[int(lba)*h.lba:][:h.lba] }

func (h *History) store(lba nvmf.LBA, b []byte, fua bool) {
	delete(h.refused, lba)
	old := h.at(lba)
	switch v := h.unflushed[lba]; {
	case !h.volatile:
	case fua:
		delete(h.unflushed, lba)
	case v == nil:
		h.unflushed[lba] = []version{{0, bytes.Clone(old)}, {h.seq, b}}
	default:
		h.unflushed[lba] = append(v, version{h.seq, b})
	}
	h.undo = append(h.undo, version{int(lba), bytes.Clone(old)})
	copy(old, b)
}

// Restore makes the content what it was before the first event.
func (h *History) Restore() {
	for _, u := range slices.Backward(h.undo) {
		copy(h.at(nvmf.LBA(u.seq)), u.data)
	}
	h.undo = h.undo[:0]
}

// flushed makes durable what was completed when seq was the last.
func (h *History) flushed(seq int) {
	for lba, v := range h.unflushed {
		first := 0
		for i := range v {
			if v[i].seq <= seq {
				first = i
			}
		}
		if first == len(v)-1 {
			delete(h.unflushed, lba)
		} else {
			h.unflushed[lba] = v[first:]
		}
	}
}

// InFlight returns the writes and deallocations that are submitted and not completed.
func (h *History) InFlight() []blocktest.Event { return h.flight }

// slot is an undetermined LBA.
type slot struct {
	lba     nvmf.LBA
	choices [][]byte // different from each other
	now     int      // the one that data holds
	cmd     int      // index of the write in flight it is of, -1 if of none
	old     int      // for cmd >= 0: its choice before, and if it is written
	new     int
}

// undetermined lists the LBAs that a crash now leaves open. kept says that
// what has completed stays: the process dies, the device does not.
func (h *History) undetermined(kept bool) []slot {
	list, index := h.slots[:0], map[nvmf.LBA]int{}
	get := func(lba nvmf.LBA) *slot {
		i, ok := index[lba]
		if !ok {
			i, index[lba] = len(list), len(list)
			list = append(list, slot{lba: lba, choices: [][]byte{bytes.Clone(h.at(lba))}, cmd: -1})
			if v := h.unflushed[lba]; v != nil && !kept {
				list[i].choices = list[i].choices[:0]
				for _, x := range v {
					list[i].now = list[i].add(x.data)
				}
			}
			for _, b := range h.refused[lba] {
				list[i].add(b)
			}
		}
		return &list[i]
	}
	for n, w := range slices.Concat(h.flight, h.late) {
		h.each(w, func(lba nvmf.LBA, b []byte, _ bool) {
			s := get(lba)
			s.cmd, s.old = n, s.now
			s.new = s.add(b)
		})
	}
	for _, lba := range slices.Sorted(maps.Keys(h.refused)) {
		get(lba)
	}
	if !kept {
		for _, lba := range slices.Sorted(maps.Keys(h.unflushed)) {
			get(lba)
		}
	}
	h.slots = slices.DeleteFunc(list, func(s slot) bool { return len(s.choices) == 1 })
	return h.slots
}

// add enters a content and returns its index.
func (s *slot) add(b []byte) int {
	for i, c := range s.choices {
		if bytes.Equal(c, b) {
			return i
		}
	}
	s.choices = append(s.choices, b)
	return len(s.choices) - 1
}
