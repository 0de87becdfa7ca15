package bench

import (
	"context"
	"fmt"
	"time"

	"nvmecr/bench/result"
)

// An Experiment is a subcommand of `nvmecr bench`.
type Experiment struct {
	Name  string // name of the subcommand
	Title string // one line
	Paper string // figures or tables of the paper; empty if there are none
	Run   func(ctx context.Context, e *Env) (*result.Result, error)
}

// Experiments lists all experiments in the order of the report. Those with a figure or
// table of the paper come first, so that a report with little time includes them.
var Experiments = []Experiment{
	{"checkpoint", "Compare checkpoints with raw queues, the sockets baseline and other file systems", "Figures 1, 7(c), 9(a), 9(c)", checkpoint},
	{"recovery", "Read checkpoints back in new processes, after a restart", "Figures 9(b), 9(d)", recovery},
	{"create", "Compare creating empty files with raw 4 KiB writes and other file systems", "Figure 8(b)", create},
	{"hugeblock", "Write checkpoints with hugeblocks of several sizes", "Figure 7(a)", hugeblock},
	{"imbalance", "Compare the load of targets: round robin, consistent hashing, striping", "Figure 7(b)", imbalance},
	{"drilldown", "Add the paper's optimisations to a kernel file system, one after another", "Figure 7(d)", drilldown},
	{"overhead", "Compare a local device with the same one over NVMe/TCP", "Figure 8(a)", overhead},
	{"multilevel", "Write every tenth checkpoint to a slow second level", "Table II", multilevel},
	{"metadata", "Measure the metadata of a rank, on the media and in memory", "Table I", metadata},
	{"scale", "Compute jobs of up to a million ranks from measured constants", "", scale},
	{"raw", "Compare raw queues with the sockets baseline", "", rawExperiment},
	{"background", "Measure what state checkpoints in the background cost an application", "", background},
	{"startup", "Measure what the preload costs a program that does nothing", "", startup},
	{"view", "Compare access through the kernel with the preload and a plain FUSE loopback", "", view},
	{"tree", "Compare one tree for the job with private files, and measure its index", "", jobTree},
	{"replay", "Measure how fast the log of a partition is replayed after a crash", "", replay},
	{"goals", "Measure what the project promises, and compare it with the goals", "", goals},
}

// Measure runs the experiment and adds its description and duration. The error names the
// experiment, except after an interruption.
func (x *Experiment) Measure(ctx context.Context, e *Env) (*result.Result, error) {
	began := time.Now()
	res, err := x.Run(ctx, e)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // the end of ctx has caused err
		}
		return nil, fmt.Errorf("bench %s: %w", x.Name, err)
	}
	res.Name, res.Title, res.Shows, res.Began, res.Took = x.Name, x.Title, x.Paper, began, time.Since(began)
	return res, res.Check()
}
