package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/bench/workers"
	"nvmecr/nvmf"
)

// drilldown adds one optimisation after another. It begins with a kernel file system,
// and continues with user space and a private namespace, metadata provenance, and
// hugeblocks. The same processes use all of these file systems in turns.
func drilldown(ctx context.Context, e *Env) (*result.Result, error) {
	if e.remote() || len(e.Config.Targets) > 0 {
		return nil, errors.New("the steps are compared in memory of one machine: leave --target and --launch out, and do not start it through mpirun or srun")
	}
	res := &result.Result{}
	res.Parameter("kernel file system", "on a loop device over a file in memory")
	for _, s := range drillSteps {
		what := "one log record for as many writes as follow one another"
		if s.each {
			what = "a log record for every write"
		}
		if s.whole {
			what += ", and all metadata written at fsync"
		}
		res.Parameter(s.name, "hugeblocks of %s, %s", s.hugeblock, what)
	}
	d := drill{env: e, res: res, best: [3]float64{math.NaN(), math.NaN(), math.NaN()}, size: min(e.Size, 64*nvmf.MiB), bars: result.Plot{Title: "Time of a checkpoint", Bars: true,
		X: result.Axis{Name: "ranks"}, Y: result.Axis{Name: "open to close", Unit: result.Duration}}}
	transfers := []nvmf.Bytes{e.Transfer, 32 * nvmf.KiB}
	d.ends = make([]ladderEnd, len(transfers))
	counts := []int{1, 2, 4, 8}
	if e.Quick {
		counts = []int{1, e.Ranks}
	}
	all := len(counts) * len(transfers)
	for i, ranks := range counts {
		for k, transfer := range transfers {
			d.env = e.with(ranks).within(i*len(transfers)+k, all)
			if err := d.ladder(ctx, ranks, min(transfer, d.size), k); err != nil {
				return nil, err
			}
		}
	}
	res.Plots = append(res.Plots, d.bars)
	d.finish()
	return res, nil
}

// drill collects the results of all ladders. A ladder is the sequence of optimisations
// for one number of ranks and one transfer size.
type drill struct {
	env  *Env
	res  *result.Result
	size nvmf.Bytes
	bars result.Plot
	best [3]float64  // the largest gain of each step over the one before; NaN: none
	ends []ladderEnd // by transfer size, with the largest number of ranks
}

// ladderEnd is the first and the last step of a ladder.
type ladderEnd struct {
	what         string
	kernel, ours stats.Sample
	name         string // of the kernel file system
	mib          float64
}

// ladder measures all steps with one number of ranks and the k-th transfer size. The
// ladder with the first size is plotted.
func (d *drill) ladder(ctx context.Context, ranks int, transfer nvmf.Bytes, k int) (err error) {
	e := d.env
	var b testbed
	b.env = e
	defer func() { err = errors.Join(err, b.Close()) }()
	sides, err := d.sides(ctx, &b)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%s, %s each in pieces of %s", rankCount(ranks), d.size, transfer)
	took, err := e.inTurns(ctx, what, work{size: d.size, transfer: transfer}, false, sides...)
	if err != nil {
		return err
	}
	mib := float64(ranks) * float64(d.size) / float64(nvmf.MiB)
	t := result.Table{Title: what, Rows: "step", Columns: []result.Column{
		{Name: "time", Unit: result.Duration}, {Name: "bandwidth", Unit: "MiB/s"}, {Name: "of the time before", Unit: result.Percent},
		{Name: "CPU of the ranks a GiB", Unit: result.Duration}, {Name: "in the kernel", Unit: result.Percent}}}
	for i, s := range sides {
		seconds := spans(took[s].write)
		cpu, kernel := processor(took[s].write, mib/1024)
		part := result.None()
		if i > 0 {
			before := sides[i-1]
			if sides[i].name == drillSteps[0].name {
				before = sides[0] // the first kernel file system is the base
			}
			g, err := share(spans(took[before].write), seconds)
			if err != nil {
				return err
			}
			if step := i - (len(sides) - len(drillSteps)); step >= 0 {
				part = result.Number(g)
				if gain := 1 - g.Value; !(gain <= d.best[step]) {
					d.best[step] = gain
				}
			}
		}
		t.Add(s.name, result.Number(result.Middle(seconds)), result.Number(result.Per(mib, seconds)), part, result.Count(cpu), result.Count(kernel))
		if k == 0 {
			d.bars.Add(s.name, float64(len(d.bars.X.Names)), result.Middle(seconds))
		}
	}
	if k == 0 {
		d.bars.X.Names = append(d.bars.X.Names, fmt.Sprint(ranks))
	}
	d.ends[k] = ladderEnd{what, spans(took[sides[0]].write), spans(took[sides[len(sides)-1]].write), sides[0].name, mib}
	d.res.Tables = append(d.res.Tables, t)
	return nil
}

// share returns the ratio of the times after to the times before, pair by pair.
func share(before, after stats.Sample) (result.Measure, error) {
	ratios, err := stats.Ratios(after, before)
	if err != nil {
		return result.Measure{}, err
	}
	return result.Interval(ratios), nil
}

// sides starts the ranks and their file systems: the kernel file systems that this host
// supports, and the steps.
func (d *drill) sides(ctx context.Context, b *testbed) ([]*side, error) {
	e := b.env
	parts := nvmf.Bytes(e.Ranks * len(drillSteps))
	t, err := e.startTarget(ctx, fmt.Sprintf("mem:%d", uint64(parts*(2*d.size+64*nvmf.MiB))))
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, t)
	if err := touch(ctx, t.ids[0]); err != nil {
		return nil, err
	}
	c, err := e.startGroup(ctx, base(), e.Bench, "rank-drilldown", "--namespace", t.ids[0].String())
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, closer(c.Stop))
	var sides []*side
	for _, kind := range []string{"xfs", "ext4"} {
		s, err := d.kernelSide(ctx, b, c, kind)
		if err != nil {
			return nil, err
		}
		if s != nil {
			sides = append(sides, s)
		}
	}
	for i, step := range drillSteps {
		sides = append(sides, &side{name: step.name, group: c, path: func(_, k int) string { return drillPath(i, k) }})
	}
	return sides, nil
}

// kernelSide returns the same processes on a kernel file system, or nil if this host
// does not support it.
func (d *drill) kernelSide(ctx context.Context, b *testbed, c *workers.Group, kind string) (*side, error) {
	l, err := b.env.startLoopback(ctx, kind, nvmf.Bytes(b.env.Ranks)*(3*d.size+64*nvmf.MiB))
	if err != nil {
		d.missing(kind, err)
		return nil, ctx.Err()
	}
	b.closers = append(b.closers, l)
	dir := filepath.Join(l.dir, "nvmecr-bench")
	s := &side{name: kind + " on a loop device", group: c, path: checkpoints(dir)}
	_, err = c.DoAll(ctx, "mkdir "+dir)
	return s, err
}

// missing records that a file system is missing, unless that is already recorded.
func (d *drill) missing(kind string, why error) {
	for _, m := range d.res.Missing {
		if m.What == kind {
			return
		}
	}
	d.res.NotMeasured(kind, "%s", why)
}

// finish adds the findings.
func (d *drill) finish() {
	first := "user space with a private namespace takes " + change(d.best[0]) + " than a kernel file system"
	if math.IsNaN(d.best[0]) {
		first = "there is no kernel file system here to compare with"
	}
	d.res.Finding = fmt.Sprintf("At best, %s; metadata provenance takes %s than user space with a private namespace, hugeblocks %s again; in the paper up to 44%%, 17%% and 62%% less. "+
		"The kernel file systems here are in memory and reached without a network; the paper's were on an SSD.",
		first, change(d.best[1]), change(d.best[2]))
	d.res.Claims = append(d.res.Claims,
		paper.UserSpaceGain.Beside("%s at best", change(d.best[0])),
		paper.ProvenanceGain.Beside("%s at best", change(d.best[1])),
		paper.HugeblocksGain.Beside("%s at best", change(d.best[2])),
		paper.KernelTimeOurs.Beside("see the tables: over TCP the kernel copies and checks each byte, which RDMA does not need"),
	)
	for _, end := range d.ends {
		d.compare(end)
	}
	d.res.Note("The first step writes its metadata as a design without operation log would: all of it at fsync, and a record for every write. Hugeblocks of 4 KiB are what kernel file systems have. " +
		"The media of all steps are memory; the kernel file systems' is reached without a network, that of the others over TCP on loopback.")
}

// compare adds the comparison with the kernel file system, if there is one.
func (d *drill) compare(end ladderEnd) {
	if end.name == drillSteps[0].name {
		return
	}
	ratios, err := stats.Ratios(end.kernel, end.ours)
	if err != nil {
		return // the time of a round was too short to measure; the table has the values
	}
	c := result.Comparison{What: "checkpoint, " + end.what, Peer: end.name, Unit: "MiB/s", Ratio: result.Interval(ratios),
		Ours: result.Per(end.mib, end.ours), Theirs: result.Per(end.mib, end.kernel)}
	c.Why = "it copies into the page cache and at fsync writes that back through the block layer and the loop device; ours goes to the target's memory with one copy on each end"
	if c.Winner() < 0 {
		c.Why = "its writes end in the page cache and nothing of them crosses a socket; each of ours is a round trip over TCP, and durable when it returns"
	}
	d.res.Comparisons = append(d.res.Comparisons, c)
}

// change describes a gain as a part of the time.
func change(gain float64) string {
	switch {
	case math.IsNaN(gain):
		return "nothing to compare"
	case gain < 0:
		return result.Percent.Format(-gain) + " more time"
	}
	return result.Percent.Format(gain) + " less time"
}
