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
// The greedy, host-aware mapping needs to know on which host each rank runs;
// only MPI_Init can collect that. It replaces RoundRobin there and is recorded
// in the partition table, which is what readers go by: nothing below changes.
//
// All functions are pure and safe for concurrent use.
package balancer

import (
	"fmt"

	"nvmecr/nvmf"
)

// A Place is where a rank stores its data.
type Place struct {
	Target int // index into the ordered namespaces
	Slot   int // which part of that namespace
	Slots  int // how many parts it has: the ranks that share it
}

// RoundRobin places rank of a job of size ranks on one of targets namespaces:
// on number rank mod targets, in slot rank div targets. The loads of any two
// namespaces differ by at most one rank.
func RoundRobin(rank, size, targets int) (Place, error) {
	switch {
	case targets < 1:
		return Place{}, fmt.Errorf("no namespace to place %d ranks on", size)
	case size < 1 || rank < 0 || rank >= size:
		return Place{}, fmt.Errorf("rank %d is not one of a job of %d", rank, size)
	}
	t := rank % targets
	return Place{Target: t, Slot: rank / targets, Slots: Ranks(t, size, targets)}, nil
}

// Ranks returns how many ranks RoundRobin puts on namespace target: 0 for a
// namespace left over when there are fewer ranks than namespaces.
func Ranks(target, size, targets int) int {
	if target >= size {
		return 0
	}
	return (size - target + targets - 1) / targets
}

// RankAt returns the rank RoundRobin puts into slot of namespace target.
func RankAt(target, slot, targets int) int { return slot*targets + target }

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
