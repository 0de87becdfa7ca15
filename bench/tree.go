package bench

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// jobTree compares the tree of a job (--view=job) with private files of each rank
// (--view=rank), and measures the costs of the tree's index. Each row is a ratio of two
// sides that took turns in this run.
func jobTree(ctx context.Context, e *Env) (res *result.Result, err error) {
	if e.remote() {
		return nil, errors.New("the index of a job's tree is measured on one machine: leave --launch out, and do not start it through mpirun or srun")
	}
	t := &treeRun{Env: e, res: &result.Result{}}
	for i, part := range []struct {
		name string
		run  func(*treeRun, context.Context) error
	}{
		{"data", (*treeRun).data}, {"restart", (*treeRun).restarts}, {"index", (*treeRun).index}, {"memory", (*treeRun).memory},
	} {
		t.Env = e.within(i, 4)
		if err := part.run(t, ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	t.res.Finding = t.finding()
	t.res.Note("The job has its own store and each rank's view another one, on one target over memory; ranks, target and index share the processors of this machine. " +
		"The two sides of a ratio take turns, round after round.")
	return t.res, nil
}

// treeRun collects the results.
type treeRun struct {
	*Env
	res *result.Result
}

// finding returns the most important result.
func (t *treeRun) finding() string {
	reached, all := 0, 0
	for _, g := range t.res.Goals {
		if g.Aside || g.Absent {
			continue
		}
		all++
		if v := g.Verdict(); v == result.Met || v == result.BarelyMet {
			reached++
		}
	}
	return fmt.Sprintf("One tree for the job keeps %d of the %d goals for what it may cost beside private files.", reached, all)
}

// treeRanks has ranks with one tree and ranks with private files, which take turns.
type treeRanks struct {
	*treeRun
	job, rank *application
}

// startTree starts both applications on a testbed. The job's store also has space for
// shared files.
func (t *treeRun) startTree(ctx context.Context, b *testbed, size nvmf.Bytes) (*treeRanks, error) {
	private := t.namespace(size)
	target, err := t.startTarget(ctx, memoryName(2*private), memoryName(private))
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, target)
	r := &treeRanks{treeRun: t}
	for i, side := range []struct {
		view string
		a    **application
	}{{"job", &r.job}, {"rank", &r.rank}} {
		if err := touch(ctx, target.ids[i]); err != nil {
			return nil, err
		}
		if *side.a, err = t.startApplication(ctx, target.ids[i:i+1], "view="+side.view); err != nil {
			return nil, fmt.Errorf("--view=%s: %w", side.view, err)
		}
		b.closers = append(b.closers, *side.a)
	}
	return r, nil
}

func memoryName(size nvmf.Bytes) string { return fmt.Sprintf("mem:%d", uint64(size)) }

// data measures the data path, and calls on data.
func (t *treeRun) data(ctx context.Context) (err error) {
	b := &testbed{env: t.Env}
	defer func() { err = errors.Join(err, b.Close()) }()
	r, err := t.startTree(ctx, b, t.Size)
	if err != nil {
		return err
	}
	for i, part := range []func(*treeRanks, context.Context) error{(*treeRanks).checkpoints, (*treeRanks).ownBytes, (*treeRanks).sharedFiles, (*treeRanks).calls} {
		r.treeRun = &treeRun{t.within(i, 4), t.res}
		if err := part(r, ctx); err != nil {
			return err
		}
	}
	return nil
}

// ratio adds the rate of one side as a share of the other side's rate, from the times
// of both sides in the same rounds.
func (t *treeRun) ratio(what string, limit float64, ours, beside stats.Sample, amount float64, unit result.Unit) error {
	ratios, err := stats.Ratios(beside, ours)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	t.res.Goals = append(t.res.Goals, result.Goal{
		What: what, Limit: limit, Unit: result.Ratio, Measured: result.Interval(ratios),
		Beside: fmt.Sprintf("%s of %s", unit.Format(result.Per(amount, ours).Value), unit.Full(result.Per(amount, beside).Value)),
	})
	return nil
}

// Limits as shares of the rate with --view=rank: for a whole checkpoint, and for calls on the same path.
const (
	checkpointShare = 0.98
	samePath        = 0.99
)

// checkpoints measures checkpoints with one file for each rank, as in the paper.
func (r *treeRanks) checkpoints(ctx context.Context) error {
	job, rank := r.job.side("--view=job"), r.rank.side("--view=rank")
	took, err := r.inTurns(ctx, "checkpoints, one file a rank", work{size: r.Size, transfer: r.Transfer}, true, job, rank)
	if err != nil {
		return err
	}
	mib := float64(r.Ranks) * float64(r.Size) / float64(nvmf.MiB)
	title := fmt.Sprintf("%s, %s each in pieces of %s, fsync and close included", rankCount(r.Ranks), r.Size, r.Transfer)
	r.res.Tables = append(r.res.Tables, bandwidths(title, mib, []*side{job, rank}, took))
	for _, what := range []string{"write", "read"} {
		name := fmt.Sprintf("%s of a checkpoint, one file a rank, %s, --view=job beside --view=rank", what, rankCount(r.Ranks))
		if err := r.ratio(name, checkpointShare, took[job].seconds(what), took[rank].seconds(what), mib, "MiB/s"); err != nil {
			return err
		}
	}
	return r.removeAll(ctx, job)
}

// removeAll removes the checkpoints of a side.
func (r *treeRanks) removeAll(ctx context.Context, s *side) error {
	return errors.Join(r.remove(ctx, s, 0), r.remove(ctx, s, 1))
}

// ownBytes measures single writes and reads of one rank, and fsyncs without changes.
func (r *treeRanks) ownBytes(ctx context.Context) error {
	job, rank := r.job.side("--view=job"), r.rank.side("--view=rank")
	for _, w := range []work{{size: r.Size, transfer: nvmf.MiB, ranks: 1}, {size: min(r.Size, 4*nvmf.MiB), transfer: 4 * nvmf.KiB, ranks: 1}} {
		w.transfer = min(w.transfer, w.size)
		took, err := r.inTurns(ctx, "single calls of "+w.transfer.String(), w, true, job, rank)
		if err != nil {
			return err
		}
		mib := float64(w.transfer) / float64(nvmf.MiB)
		if err := r.ratio(fmt.Sprintf("write of own bytes, %s, one rank, the median call", w.transfer), samePath,
			medians(took[job].write), medians(took[rank].write), mib, "MiB/s"); err != nil {
			return err
		}
		if err := r.ratio(fmt.Sprintf("read of own bytes, %s, one rank, the median call", w.transfer), samePath,
			medians(took[job].read), medians(took[rank].read), mib, "MiB/s"); err != nil {
			return err
		}
	}
	return r.removeAll(ctx, job)
}
