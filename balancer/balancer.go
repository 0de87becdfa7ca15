// Package balancer decides which rank stores where: on which of the given
// namespaces, and in which part of it.
//
// The paper's storage balancer (section III.F) does two things. The scheduler
// side allocates storage nodes in partner failure domains, close to the
// compute nodes, by a greedy algorithm over the network topology; the runtime
// side assigns the processes to the allocated SSDs round robin and gives each
// a contiguous segment by its rank among those that share the SSD. This
// package has the second half: the namespaces were chosen by whoever named
// them, and the mapping is a pure function of rank, size and their number, so
// that every process of a rank computes the same without asking anyone.
//
// A Mapping is computed once a job, where its ranks are known, and handed to
// whoever opens partitions; the partition table records it, which is what
// readers go by. The greedy, host-aware mapping needs to know on which host each
// rank runs; only MPI_Init can collect that. It is another way to make a
// Mapping.
//
// All functions are pure and safe for concurrent use.
package balancer

import (
	"fmt"

	"nvmecr/nvmf"
)

// A Home is where a rank stores its data.
type Home struct {
	Target int // index into the ordered namespaces
	Slot   int // which part of that namespace
	Slots  int // how many parts it has: the ranks that share it
}

// A Mapping gives every rank of a job its home. The zero value maps nothing.
type Mapping struct{ size, targets int }

// RoundRobin maps a job of size ranks onto targets namespaces: rank r to
// number r mod targets, in slot r div targets. The loads of any two namespaces
// differ by at most one rank.
func RoundRobin(size, targets int) (Mapping, error) {
	switch {
	case targets < 1:
		return Mapping{}, fmt.Errorf("no namespace to place %d ranks on", size)
	case size < 1:
		return Mapping{}, fmt.Errorf("a job of %d ranks has nothing to place", size)
	}
	return Mapping{size, targets}, nil
}

// Home returns where a rank stores its data.
func (m Mapping) Home(rank int) (Home, error) {
	if rank < 0 || rank >= m.size {
		return Home{}, fmt.Errorf("rank %d is not one of a job of %d", rank, m.size)
	}
	t := rank % m.targets
	return Home{Target: t, Slot: rank / m.targets, Slots: m.Ranks(t)}, nil
}

// Ranks returns how many ranks have their home on namespace target: 0 for one
// left over when there are fewer ranks than namespaces.
func (m Mapping) Ranks(target int) int {
	if target >= m.size {
		return 0
	}
	return (m.size - target + m.targets - 1) / m.targets
}

// RankAt returns the rank whose home is slot of namespace target.
func (m Mapping) RankAt(target, slot int) int { return slot*m.targets + target }

// A Segment is a contiguous part of a namespace.
type Segment struct{ Start, Length nvmf.Bytes }

// Segments cuts the namespace from first (what lies before is the partition
// table's) to capacity into slots equal segments that start and end on
// multiples of align, a power of two. What does not divide is left at the end.
func Segments(first, capacity nvmf.Bytes, slots int, align nvmf.Bytes) ([]Segment, error) {
	if slots < 1 || align == 0 || align&(align-1) != 0 {
		return nil, fmt.Errorf("cannot cut a namespace into %d segments aligned to %d bytes", slots, align)
	}
	start := first.AlignUp(align)
	var length nvmf.Bytes
	if start >= first && capacity > start {
		length = ((capacity - start) / nvmf.Bytes(slots)).AlignDown(align)
	}
	if length == 0 {
		return nil, fmt.Errorf("a namespace of %s is too small for %d partitions", capacity, slots)
	}
	segs := make([]Segment, slots)
	for i := range segs {
		segs[i] = Segment{Start: start + nvmf.Bytes(i)*length, Length: length}
	}
	return segs, nil
}
