package model

import (
	"math"
	"math/bits"
	"time"
)

// Costs has the values measured on one machine.
type Costs struct {
	// RankMessages and RankBytes count the PDUs of one rank in both directions, from
	// its connection until it has mounted on a formatted target.
	RankMessages int
	RankBytes    uint64
	// FormatMessages counts the additional PDUs of the rank that formats a target.
	FormatMessages int
	// MountOne is the time from connection to mount of one rank. MountEach is the additional time
	// for each rank that does the same at the same time on the same target.
	MountOne, MountEach time.Duration
	// Format is the time for creating a target's table, for each of its ranks.
	// FormatBase is the part that does not depend on the ranks.
	FormatBase, Format time.Duration
	// Poll is the interval at which the other ranks look for the table.
	Poll time.Duration
	// Home is the time that the balancer takes for one rank.
	Home time.Duration
	// Index has the costs of the index of a job's tree.
	Index IndexCosts
	// Efficiency is the share of the hardware's bandwidth that an application gets.
	Efficiency float64
}

// A Job is a job whose costs are predicted.
type Job struct {
	Ranks int
	Size  uint64 // bytes that each rank writes in one checkpoint
}

// A Prediction has the costs of the start and of a checkpoint of a job.
type Prediction struct {
	Ranks, Targets int
	// Fullest is the number of ranks on the fullest target.
	Fullest int
	// Collectives counts MPI messages at the start. Depth is the number of them in sequence.
	Collectives uint64
	Depth       int
	// Messages counts the NVMe/TCP PDUs of all ranks at the start, TargetMessages those of the
	// fullest target.
	Messages, TargetMessages uint64
	// Start is the time from MPI_Init until the last rank has mounted, for the first
	// start, which also formats the targets. Restart is the same time for a later run.
	Start, Restart time.Duration
	// Balance is the balancer's time for all ranks on one core. A rank computes only its own home.
	Balance time.Duration
	// BalanceBytes is the memory of the mapping in a rank.
	BalanceBytes uint64
	// TableBytes is the size of the table that is written to each target.
	TableBytes uint64
	// Checkpoint is the time in which the slowest rank writes.
	Checkpoint time.Duration
	// Limit names the bottleneck of a checkpoint.
	Limit string
}

// collectives is the number of MPI collectives in MPI_Init. One creates MPI_COMM_CR,
// and in the other one all ranks agree that they have mounted.
const collectives = 2

// Predict computes the costs of a job.
//
// The start has three parts. First, the collectives of MPI have a depth of log2 of the
// number of ranks. Second, the ranks of one target connect to it at the same time, in
// parallel with those of other targets. Third, at the first start a rank formats the
// target before the others find its table. No other part of the start depends on the
// number of ranks.
func (j Job) Predict(f Fabric, c Costs) Prediction {
	o := Prediction{Ranks: j.Ranks, Targets: max(1, ceilDiv(j.Ranks, f.RanksPerTarget))}
	o.Fullest = ceilDiv(j.Ranks, o.Targets)
	o.Depth = collectives * bits.Len(uint(j.Ranks-1))
	o.Collectives = uint64(j.Ranks) * uint64(o.Depth)
	o.Messages = uint64(j.Ranks)*uint64(c.RankMessages) + uint64(o.Targets)*uint64(c.FormatMessages)
	o.TargetMessages = uint64(o.Fullest)*uint64(c.RankMessages) + uint64(c.FormatMessages)
	o.Restart = time.Duration(o.Depth)*f.Latency + c.MountOne + time.Duration(o.Fullest-1)*c.MountEach
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

// A rank has memory for the mapping, and for the ranks of its target while MPI_COMM_CR
// is created. A table has two copies, each with a header and an entry for each rank. A
// test compares these constants with the code.
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

// checkpoint computes the time of a checkpoint from the narrowest part of the path, for the fullest
// target and a full node.
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
