// Package balancer maps the ranks of a job to the given
// namespaces, and to a segment of each.
//
// The paper's storage balancer (section III.F) does two things. The scheduler
// side allocates storage nodes in partner failure domains, close to the
// compute nodes, by a greedy algorithm over the network topology; the runtime
// side assigns the processes to the allocated SSDs round robin and gives each
// a contiguous segment by its rank among those that share the SSD. This
// package has the second half, and balancer/placement the first. The mapping is a
// pure function of rank, size, the plan and the number of namespaces, so that every
// process of a rank computes the same mapping without communication. A plan by hosts also needs the hosts
// of all ranks, which the ranks exchange in MPI_Init (mpiwrap.Join).
//
// A Plan describes the mapping for any number of ranks. Its text form is given
// to the processes of a job before any of them starts. A Mapping is a Plan applied to one
// number of ranks. The partition tables record the mapping: readers, and writers of an existing store,
// use the tables.
//
// All functions are pure and safe for concurrent use.
package balancer

import (
	"fmt"

	"nvmecr/nvmf"
)

// A Device is one of the places where a rank stores its data.
type Device struct {
	Target int // index into the ordered namespaces
	Slot   int // index of its partition in that namespace, in order
}

// A Home is where a rank stores its data: its own device first, then those that hold
// copies of it.
type Home []Device

// A Mapping maps every rank of a job to its home.
type Mapping interface {
	// Size returns the number of ranks.
	Size() int
	// Home returns the home of a rank. It fails for a rank that is not in the job.
	Home(rank int) (Home, error)
	// Ranks returns the ranks with a device on namespace target, in ascending order: the rank in slot i is element i.
	// It is empty for a namespace that is not used.
	Ranks(target int) []int
}

// RoundRobin maps rank r to namespace r mod targets, in slot r div targets. The loads of any two namespaces differ by
// at most one rank.
func RoundRobin(size, targets int) (Mapping, error) {
	if err := check(size, targets); err != nil {
		return nil, err
	}
	return roundRobin{size, targets}, nil
}

func check(size, targets int) error {
	switch {
	case targets < 1:
		return fmt.Errorf("no namespace to place %d ranks on", size)
	case size < 1:
		return fmt.Errorf("a job of %d ranks has no ranks to place", size)
	}
	return nil
}

func checkRank(rank, size int) error {
	if rank < 0 || rank >= size {
		return fmt.Errorf("rank %d is not in a job of %d ranks", rank, size)
	}
	return nil
}

type roundRobin struct{ size, targets int }

func (m roundRobin) Size() int { return m.size }

func (m roundRobin) Home(rank int) (Home, error) {
	if err := checkRank(rank, m.size); err != nil {
		return nil, err
	}
	return Home{{Target: rank % m.targets, Slot: rank / m.targets}}, nil
}

func (m roundRobin) Ranks(target int) []int {
	if target < 0 || target >= min(m.size, m.targets) {
		return nil
	}
	ranks := make([]int, (m.size-target+m.targets-1)/m.targets)
	for slot := range ranks {
		ranks[slot] = slot*m.targets + target
	}
	return ranks
}

// A Segment is a contiguous part of a namespace.
type Segment struct{ Start, Length nvmf.Bytes }

// Segments divides the namespace from first (the partition table is before) to capacity into slots equal segments,
// which start and end on multiples of align, a power of two. The remainder is unused, at the end.
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
