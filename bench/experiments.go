package bench

import (
	"context"
	"fmt"
	"time"

	"nvmecr/bench/result"
)

// An Experiment is a subcommand of `nvmecr bench`.
type Experiment struct {
	Name  string // of the subcommand
	Title string // one line
	Paper string // its part of the paper; empty: none
	Run   func(ctx context.Context, e *Env) (*result.Result, error)
}

// Experiments lists all experiments in the order of the report. Those with a part of the paper come
// first, so that a report in little time has them.
var Experiments = []Experiment{
	{"checkpoint", "Write checkpoints beside the raw queue, the sockets baseline and the peers", "Figures 1, 7(c), 9(a), 9(c)", checkpoint},
	{"recovery", "Read checkpoints back in new processes, after a restart", "Figures 9(b), 9(d)", recovery},
	{"create", "Make files", "Figure 8(b)", create},
	{"hugeblock", "Checkpoints with hugeblocks of several sizes", "Figure 7(a)", hugeblock},
	{"imbalance", "Load of the targets: round robin beside consistent hashing and striping", "Figure 7(b)", imbalance},
	{"drilldown", "Switch the optimisations on in turn, from a kernel file system on", "Figure 7(d)", drilldown},
	{"overhead", "A local device beside the same over NVMe/TCP", "Figure 8(a)", overhead},
	{"multilevel", "Checkpoints of two levels: every tenth goes to a slow one", "Table II", multilevel},
	{"metadata", "What the metadata of a rank takes, on the media and in memory", "Table I", metadata},
	{"scale", "Jobs of up to a million ranks, computed from what is measured here", "", scale},
	{"raw", "Measure the raw queue beside the sockets baseline", "", rawExperiment},
	{"background", "What state checkpoints in the background cost an application", "", background},
	{"startup", "What the preload costs a program that does nothing", "", startup},
	{"view", "Files by way of the kernel beside the preload, and beside a plain FUSE loopback", "", view},
	{"tree", "What one tree for the job costs beside private files, and what its index takes", "", jobTree},
	{"replay", "Mount a partition whose writer is gone", "", replay},
	{"goals", "Measure what the project promises, each number beside its goal", "", goals},
}

// Measure runs the experiment and adds its description and duration. The error names the
// experiment, except after an interruption.
func (x *Experiment) Measure(ctx context.Context, e *Env) (*result.Result, error) {
	began := time.Now()
	res, err := x.Run(ctx, e)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // other errors are a consequence of it
		}
		return nil, fmt.Errorf("bench %s: %w", x.Name, err)
	}
	res.Name, res.Title, res.Shows, res.Began, res.Took = x.Name, x.Title, x.Paper, began, time.Since(began)
	return res, res.Check()
}
