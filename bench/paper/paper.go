// Package paper has the paper's numbers that the experiments are compared with:
// Gugnani, Li, Lu, "NVMe-CR: A Scalable Ephemeral Storage Runtime for
// Checkpoint/Restart with NVMe-over-Fabrics", IPDPS 2021.
//
// The package has only numbers that the text and the tables state. Most figures show
// more results, but only as points in a plot; reading these would give numbers that
// were not published. The paper used another machine: see Testbed.
package paper

import (
	"fmt"

	"nvmecr/bench/result"
)

// Testbed is the cluster on which the paper measured (section IV.A).
const Testbed = "8 storage nodes (28 cores, one Intel P4800X Optane SSD each), 16 compute nodes (28 cores), " +
	"100 Gbit/s EDR InfiniBand, SPDK over RDMA, CoMD, 448 processes"

// A Number is a number of the paper.
type Number struct {
	What   string // what the number measures
	Value  float64
	Unit   result.Unit
	Said   string // in the words of the paper
	Source string
}

// Beside returns a claim with the number and the result of this run.
func (n Number) Beside(format string, a ...any) result.Claim {
	return result.Claim{What: n.What, Paper: n.Said, Source: n.Source, Here: fmt.Sprintf(format, a...)}
}

// Cell returns the number for the paper's row in a table.
func (n Number) Cell() result.Cell { return result.In(n.Unit, n.Value) }

// MB is the unit of sizes in the paper.
const MB = 1e6

// Numbers of the paper, in its order.
var (
	OrangeFSOfPeak  = Number{"OrangeFS, checkpoint bandwidth at best", 0.41, result.Percent, "41% of the hardware's", "section I.A, Figure 1"}
	GlusterFSOfPeak = Number{"GlusterFS, checkpoint bandwidth at best", 0.84, result.Percent, "84% of the hardware's", "section I.A, Figure 1"}

	ProcessesPerSSDLeast = Number{"processes for each SSD, least", 56, result.Whole, "56", "section III.F"}
	ProcessesPerSSDMost  = Number{"processes for each SSD, most", 112, result.Whole, "112", "section III.F"}

	HugeblockBest   = Number{"best size of hugeblocks", 32 * 1024, result.Size, "32 KB", "section IV.B, Figure 7(a)"}
	HugeblockGain   = Number{"time to write 512 MB with 32 KB hugeblocks rather than 4 KB", 0.07, result.Percent, "7% less", "section IV.B, Figure 7(a)"}
	HugeblockFewer  = Number{"blocks to keep track of, 4 KB rather than 32 KB", 8, result.Times, "8 times", "section IV.B"}
	ImbalanceOurs   = Number{"coefficient of variation of load", 0, result.Ratio, "\"perfect load balancing regardless of the level of concurrency\"", "section IV.C, Figure 7(b)"}
	DirectOverXFS   = Number{"512 MB on a local SSD, beside XFS", 0.19, result.Percent, "19% better", "section IV.D, Figure 7(c)"}
	DirectOverExt4  = Number{"512 MB on a local SSD, beside ext4", 0.83, result.Percent, "83% better", "section IV.D, Figure 7(c)"}
	DirectOverSPDK  = Number{"512 MB on a local SSD, beside SPDK", 0, result.Percent, "\"no noticeable overhead\"", "section IV.D, Figure 7(c)"}
	KernelTimeOurs  = Number{"time spent in the kernel", 0.10, result.Percent, "10%", "section IV.D"}
	KernelTimeXFS   = Number{"time spent in the kernel, XFS", 0.765, result.Percent, "76.5%", "section IV.D"}
	KernelTimeExt4  = Number{"time spent in the kernel, ext4", 0.79, result.Percent, "79%", "section IV.D"}
	UserSpaceGain   = Number{"user space and private namespace, over a kernel file system", 0.44, result.Percent, "up to 44%", "section IV.E, Figure 7(d)"}
	ProvenanceGain  = Number{"metadata provenance, over user space and private namespace", 0.17, result.Percent, "up to 17%", "section IV.E, Figure 7(d)"}
	HugeblocksGain  = Number{"hugeblocks, over metadata provenance", 0.62, result.Percent, "up to 62%", "section IV.E, Figure 7(d)"}
	RemoteOverhead  = Number{"overhead of the remote SSD", 0.035, result.Percent, "below 3.5%", "section IV.F, Figure 8(a)"}
	RemoteOverCrail = Number{"overhead of the remote SSD, beside Crail", 0, result.Plain, "5 to 10% lower", "section IV.F, Figure 8(a)"}

	// The text does not say which of the two systems belongs to OrangeFS.
	CreatesLess = Number{"creates at 448 processes, over the better of OrangeFS and GlusterFS", 7, result.Times, "7 times", "section IV.G, Figure 8(b)"}
	CreatesMore = Number{"creates at 448 processes, over the other", 18, result.Times, "18 times", "section IV.G, Figure 8(b)"}

	MediaOrangeFS  = Number{"metadata on the media, OrangeFS, for each storage node", 2686.25 * MB, result.Size, "2686.25 MB", "Table I"}
	MediaGlusterFS = Number{"metadata on the media, GlusterFS, for each storage node", 3.5 * MB, result.Size, "3.5 MB", "Table I"}
	MediaOurs      = Number{"metadata on the media, for each process", 445.25 * MB, result.Size, "445.25 MB", "Table I"}
	MediaShare     = Number{"of the SSD for metadata and state, in the worst case", 0.017, result.Percent, "1.7%", "section IV.G"}
	MemoryInodes   = Number{"memory for inodes, for each process", 404 * MB, result.Size, "404 MB", "section IV.G"}
	MemoryTree     = Number{"memory for the B+Tree, for each process", 102 * MB, result.Size, "102 MB", "section IV.G"}
	Memory         = Number{"memory for metadata, for each process", 506 * MB, result.Size, "506 MB (404 MB for inodes, 102 MB for the B+Tree)", "section IV.G"}

	StrongData         = Number{"strong scaling, written in 10 checkpoints", 86e9, result.Size, "86 GB", "section IV.H, Figure 9(a)"}
	StrongGlusterFS    = Number{"strong scaling, checkpoint bandwidth of GlusterFS", 0.13, result.Percent, "about 13% lower", "section IV.H, Figure 9(a)"}
	WeakData           = Number{"weak scaling, written in 10 checkpoints by 448 processes", 700e9, result.Size, "700 GB", "section IV.H, Figure 9(c)"}
	CheckpointEfficacy = Number{"efficiency of checkpoints at 448 processes", 0.96, result.Ratio, "0.96 of the hardware's bandwidth", "section IV.H, Figure 9(c)"}
	RecoveryEfficacy   = Number{"efficiency of recovery at 448 processes", 0.99, result.Ratio, "0.99 of the hardware's bandwidth", "section IV.H, Figure 9(d)"}

	MultilevelCheckpoint = Row{"checkpoint time", result.Duration, 85.9, 44.5, 39.5}
	MultilevelRecovery   = Row{"recovery time", result.Duration, 3.6, 4.5, 3.6}
	MultilevelProgress   = Row{"progress rate", result.Ratio, 0.252, 0.402, 0.423}
	UncoalescedRecovery  = Number{"recovery time without log record coalescing", 4, result.Duration, "4 s", "section IV.I"}
	MultilevelEvery      = Number{"one checkpoint of how many goes to Lustre", 10, result.Whole, "one in ten", "section IV.I"}
	CheckpointOverhead   = Number{"checkpoint overhead, over the state of the art", 2, result.Times, "up to 2 times less", "abstract"}
	ProgressGain         = Number{"progress rate, over the state of the art", 1.6, result.Times, "up to 1.6 times", "section V"}
)

// A Row is a row of Table II: CoMD with multi-level checkpoints at 448 processes.
type Row struct {
	What                      string
	Unit                      result.Unit
	OrangeFS, GlusterFS, Ours float64
}

// Beside returns a claim with the row and the result of this run.
func (r Row) Beside(format string, a ...any) result.Claim {
	return result.Claim{What: r.What, Source: "section IV.I, Table II", Here: fmt.Sprintf(format, a...),
		Paper: fmt.Sprintf("%s (GlusterFS %s, OrangeFS %s)", r.Unit.Full(r.Ours), r.Unit.Full(r.GlusterFS), r.Unit.Full(r.OrangeFS))}
}
