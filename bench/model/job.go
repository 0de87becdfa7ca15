package model

import (
	"math"
	"math/bits"
	"time"
)

// Costs are what was measured on one machine.
type Costs struct {
	// RankMessages and RankBytes are the PDUs of one rank from its connection
	// to its mount on a formatted target, both ways.
	RankMessages int
	RankBytes    uint64
	// FormatMessages are those of the rank that formats a target, beside.
	FormatMessages int
	// Alone is the time from connection to mount of a rank alone; Each is by how
	// much that grows with each rank that does the same at the same time on
	// the same target.
	Alone, Each time.Duration
	// Format is how long it takes to make a target's table, for each of its
	// ranks; FormatBase, what does not depend on them.
	FormatBase, Format time.Duration
	// Poll is how often the others look whether that is done.
	Poll time.Duration
	// Home is how long the balancer takes for one rank.
	Home time.Duration
	// Index is of the index of a job's tree.
	Index IndexCosts
	// Efficiency is what share of the hardware's bandwidth an application
	// gets.
	Efficiency float64
}

// A Job is what is started.
type Job struct {
	Ranks int
	Size  uint64 // bytes that each rank writes in one checkpoint
}

// A Prediction is what the start and a checkpoint of a job cost.
type Prediction struct {
	Ranks, Targets int
	// Fullest is how many ranks the fullest target has.
	Fullest int
	// Collectives are messages of MPI at the start, Depth how many of them
	// follow one another.
	Collectives uint64
	Depth       int
	// Messages are NVMe/TCP PDUs at the start, of all ranks; TargetMessages
	// those that the fullest target sees.
	Messages, TargetMessages uint64
	// Start is from MPI_Init to the mount of the last rank, the first time,
	// when the targets are formatted as well; Restart is that of a later run.
	Start, Restart time.Duration
	// Balance is the balancer's time for all ranks on one core; each rank
	// only computes its own.
	Balance time.Duration
	// BalanceBytes is what a rank holds of the mapping.
	BalanceBytes uint64
	// TableBytes are written to each target for its table.
	TableBytes uint64
	// Checkpoint is how long the slowest rank writes.
	Checkpoint time.Duration
	// Limit names what limits it.
	Limit string
}

// collectives is how many of MPI's MPI_Init adds: one that makes MPI_COMM_CR,
// one in which all agree that they have mounted.
const collectives = 2

// Predict computes what a job costs.
//
// The start has three parts: collectives of MPI, whose messages follow one
// another log2 of the ranks deep; the ranks of one target, which connect to it
// at the same time, while other targets do the same beside; and, at the first
// start, the rank that formats a target before the others find its table.
// Nothing else of it depends on the number of ranks.
func (j Job) Predict(f Fabric, c Costs) Prediction {
	o := Prediction{Ranks: j.Ranks, Targets: max(1, ceilDiv(j.Ranks, f.RanksPerTarget))}
	o.Fullest = ceilDiv(j.Ranks, o.Targets)
	o.Depth = collectives * bits.Len(uint(j.Ranks-1))
	o.Collectives = uint64(j.Ranks) * uint64(o.Depth)
	o.Messages = uint64(j.Ranks)*uint64(c.RankMessages) + uint64(o.Targets)*uint64(c.FormatMessages)
	o.TargetMessages = uint64(o.Fullest)*uint64(c.RankMessages) + uint64(c.FormatMessages)
	o.Restart = time.Duration(o.Depth)*f.Latency + c.Alone + time.Duration(o.Fullest-1)*c.Each
	o.Start = o.Restart + c.FormatBase + time.Duration(o.Fullest)*c.Format
	if o.Fullest > 1 {
		o.Start += c.Poll
	}
	o.Balance = time.Duration(j.Ranks) * c.Home
	o.BalanceBytes = mappingBytes + uint64(o.Fullest)*sharerBytes
	o.TableBytes = tableBytes(o.Fullest)
	o.checkpoint(j, f, c)
	return o
}

// What a rank holds: the mapping, and the ranks it shares a target with while
// MPI_COMM_CR is made. The table: two copies, a header and an entry for each
// rank. The test compares these with the code they are of.
const (
	mappingBytes = 32
	sharerBytes  = 8
	headerBytes  = 4096
	entryBytes   = 32
)

func tableBytes(entries int) uint64 {
	const page = 4096
	return 2 * (headerBytes + (uint64(entries)*entryBytes+page-1)/page*page)
}

// checkpoint: the narrowest part of the way decides, for the fullest target
// and a full node.
func (o *Prediction) checkpoint(j Job, f Fabric, c Costs) {
	onTarget := float64(o.Fullest) * float64(j.Size)
	onNode := float64(min(j.Ranks, f.RanksPerNode)) * float64(j.Size)
	seconds := 0.0
	for _, way := range []struct {
		name    string
		seconds float64
	}{
		{"the media", onTarget / (f.Target * c.Efficiency)},
		{"the targets' network", onTarget / (f.TargetLink * c.Efficiency)},
		{"the ranks' network", onNode / (f.NodeLink * c.Efficiency)},
	} {
		if way.seconds > seconds {
			seconds, o.Limit = way.seconds, way.name
		}
	}
	o.Checkpoint = time.Duration(math.Round(seconds * 1e9))
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
