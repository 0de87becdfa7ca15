package crash

import (
	"bytes"
	"errors"
	"maps"
	"slices"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
)

// A History holds the possible contents of a device at one event of a trace. It is not
// safe for concurrent use.
type History struct {
	data     []byte // the contents that reads return: all completed writes
	lba      int
	volatile bool

	flight []blocktest.Event // submitted and not completed writes, in order; a deallocation is a write of zeros
	late   []blocktest.Event // writes in flight when their connection was lost
	// refused holds other contents that an LBA may have: those of failed writes, and
	// those from before a deallocation.
	refused map[nvmf.LBA][][]byte
	// unflushed holds the versions of an LBA since the last flush. The first one is
	// durable, and the last one is in data.
	unflushed map[nvmf.LBA][]version
	seq       int         // number of the last completed write
	undo      []version   // the contents that Restore restores; the field seq has the LBA
	flushes   map[int]int // flushes in flight, with the value of seq at their submission

	slots []slot // reused by Images
}

// A version is a content of an LBA. seq is the number of the write.
type version struct {
	seq  int
	data []byte
}

// NewHistory returns the History before the first event of a trace. data has the
// contents of the device at that time. The History changes data as it follows the
// trace.
func NewHistory(data []byte, lba nvmf.Bytes, volatile bool) *History {
	return &History{
		data: data, lba: int(lba), volatile: volatile,
		refused: map[nvmf.LBA][][]byte{}, unflushed: map[nvmf.LBA][]version{}, flushes: map[int]int{},
	}
}

// Step processes the next event of the trace.
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
			if w.Opcode == nvmf.Deallocate { // the contents of deallocated blocks are not guaranteed
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

// Restore restores the contents from before the first event.
func (h *History) Restore() {
	for _, u := range slices.Backward(h.undo) {
		copy(h.at(nvmf.LBA(u.seq)), u.data)
	}
	h.undo = h.undo[:0]
}

// flushed makes the writes up to number seq durable.
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

// InFlight returns the submitted and not completed writes and deallocations.
func (h *History) InFlight() []blocktest.Event { return h.flight }

// A slot is an undetermined LBA.
type slot struct {
	lba     nvmf.LBA
	choices [][]byte // the possible contents, all different
	now     int      // index of the content in data
	cmd     int      // index of the write in flight to this LBA, -1 if there is none
	old     int      // if cmd >= 0: indexes of the contents before and after the write
	new     int
}

// undetermined returns the LBAs that are undetermined after a crash now. kept means
// that completed writes persist, since the process crashes and the device does not.
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

// add adds a content to the choices, unless it is there already, and returns its index.
func (s *slot) add(b []byte) int {
	for i, c := range s.choices {
		if bytes.Equal(c, b) {
			return i
		}
	}
	s.choices = append(s.choices, b)
	return len(s.choices) - 1
}
