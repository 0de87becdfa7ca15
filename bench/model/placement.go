// Package model computes what is too large to measure on this machine: where a million
// ranks put their data, the load of the slowest target, and the cost of starting such a
// job.
//
// The package measures nothing. Values that can be measured on a small machine are
// parameters (Costs), as are those of the fabric (Fabric). So a reader can distinguish
// them, and use other values. All results are deterministic, since random choices use a
// seed.
//
// All functions are pure and safe for concurrent use.
package model

import (
	"math/bits"
	"slices"
	"sort"
	"strconv"

	"nvmecr/balancer"
)

// A Placement decides how much data each target of a job gets. Each rank writes one
// file of size bytes, as in the N-N pattern. The result has the sum for each target.
// trial selects another directory of files, or another job: a placement by names then
// has another result.
type Placement struct {
	Name  string
	About string // the rule, in half a sentence
	Place func(ranks, targets int, size uint64, trial uint64) []uint64
}

// Placements lists the placements to compare. The first one is nvmecr's.
var Placements = []Placement{
	{"round robin", "nvmecr without a site's inventory: rank r has target r mod T", roundRobin},
	{"hash ranges", "as GlusterFS: a hash of the file's name falls into one of T equal ranges", hashRanges},
	{"jump hash", "the consistent hash of Lamping and Veach, which the paper cites", jumpHash},
	{"hash ring", "consistent hashing on a ring with 100 points for each target", hashRing},
	{"striping", "as OrangeFS: strips of 64 KiB over all targets, from one that the file's name decides", striping},
}

// Plan is nvmecr's placement if the site describes the locations of its targets.
var Plan = Placement{"plan", "nvmecr plan: targets outside of the ranks' racks, in equal loads", planned}

func roundRobin(ranks, targets int, size uint64, _ uint64) []uint64 {
	loads := make([]uint64, targets)
	m, err := balancer.RoundRobin(ranks, targets)
	if err != nil {
		return loads // without ranks nothing is placed
	}
	for t := range loads {
		loads[t] = uint64(len(m.Ranks(t))) * size
	}
	return loads
}

func hashRanges(ranks, targets int, size uint64, trial uint64) []uint64 {
	loads := make([]uint64, targets)
	for r := range ranks {
		range_, _ := bits.Mul64(nameHash(r, trial), uint64(targets))
		loads[range_] += size
	}
	return loads
}

func jumpHash(ranks, targets int, size uint64, trial uint64) []uint64 {
	loads := make([]uint64, targets)
	for r := range ranks {
		loads[Jump(nameHash(r, trial), targets)] += size
	}
	return loads
}

// Jump is jump consistent hashing: it returns the bucket of a key, out of n. When n
// grows by one, one key in n+1 moves, always into the new bucket.
func Jump(key uint64, n int) int {
	bucket, next := int64(-1), int64(0)
	for next < int64(n) {
		bucket = next
		key = key*2862933555777941757 + 1
		next = int64(float64(bucket+1) * (float64(int64(1)<<31) / float64((key>>33)+1)))
	}
	return int(bucket)
}

// ringPoints is the number of points of each target on the ring. With more points the
// shares are more equal: their deviation falls with the square root of the number.
const ringPoints = 100

func hashRing(ranks, targets int, size uint64, trial uint64) []uint64 {
	type point struct {
		at     uint64
		target int
	}
	ring := make([]point, 0, targets*ringPoints)
	for t := range targets {
		for p := range ringPoints {
			ring = append(ring, point{mix(uint64(t)<<32 | uint64(p) | 1<<63), t})
		}
	}
	slices.SortFunc(ring, func(a, b point) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	loads := make([]uint64, targets)
	for r := range ranks {
		h := nameHash(r, trial)
		i := sort.Search(len(ring), func(i int) bool { return ring[i].at >= h })
		loads[ring[i%len(ring)].target] += size
	}
	return loads
}

// strip is the default strip size of OrangeFS.
const strip = 64 << 10

func striping(ranks, targets int, size uint64, trial uint64) []uint64 {
	loads := make([]uint64, targets)
	whole := size / (strip * uint64(targets)) * strip // of each file on each target
	rest := size - whole*uint64(targets)
	for r := range ranks {
		first := nameHash(r, trial) % uint64(targets)
		for left, t := rest, first; left > 0; t++ {
			n := min(left, strip)
			loads[t%uint64(targets)] += n
			left -= n
		}
	}
	for t := range loads {
		loads[t] += whole * uint64(ranks)
	}
	return loads
}

// nameHash returns the hash of the name of a rank's file.
func nameHash(rank int, trial uint64) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	var buf [48]byte
	name := append(strconv.AppendUint(buf[:0], trial, 10), "/CoMD.ckpt."...)
	h := uint64(offset)
	for _, c := range strconv.AppendInt(name, int64(rank), 10) {
		h = (h ^ uint64(c)) * prime
	}
	return mix(h)
}

// mix spreads the bits of h. It is the final step of splitmix64.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Slowest returns the load of the fullest target divided by the mean load, and 1 if
// there is no load. If the targets are the bottleneck, a checkpoint takes this many
// times as long as with equal loads.
func Slowest(loads []uint64) float64 {
	sum, highest := 0.0, uint64(0)
	for _, l := range loads {
		sum += float64(l)
		highest = max(highest, l)
	}
	if sum == 0 {
		return 1
	}
	return float64(highest) * float64(len(loads)) / sum
}
