package bench

import (
	"context"
	"errors"
	"fmt"
	"path"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// restartLimit is the goal for a restart with another number of ranks, as a multiple of
// the time of a restart with the same number.
const restartLimit = 2

// filesOfRank is the number of files that a rank writes before a restart.
const filesOfRank = 10

// restarts measures restarts with half and with twice the number of ranks, and compares
// them with a restart with the same number. A restart takes from the first call under
// the mount until each rank has read. For twice as many ranks the store must grow.
func (t *treeRun) restarts(ctx context.Context) (err error) {
	b := &testbed{env: t.Env}
	defer func() { err = errors.Join(err, b.Close()) }()
	target, err := t.startTarget(ctx, memoryName(2*t.namespace(32*nvmf.MiB)))
	if err != nil {
		return err
	}
	b.closers, b.store = append(b.closers, target), target.ids
	counts := []int{t.Ranks, max(1, t.Ranks/2), 2 * t.Ranks}
	took := make([]stats.Sample, len(counts))
	for round := range 1 + t.Rounds {
		t.progress("restarts with other numbers of ranks", round, 1+t.Rounds)
		seconds, err := t.restartEach(ctx, b, counts)
		if err != nil {
			return err
		}
		for i := range counts {
			if round > 0 {
				took[i] = append(took[i], seconds[i])
			}
		}
	}
	for i, n := range counts[1:] {
		ratios, err := stats.Ratios(took[i+1], took[0])
		if err != nil {
			return err
		}
		t.res.Goals = append(t.res.Goals, result.Goal{
			What:  fmt.Sprintf("restart with %s of a store of %d, until all have read, times that of as many", rankCount(n), t.Ranks),
			Limit: restartLimit, AtMost: true, Unit: result.Times, Measured: result.Interval(ratios),
			Beside: fmt.Sprintf("%s and %s", result.Duration.Full(took[i+1].Median()), result.Duration.Full(took[0].Median())),
		})
	}
	return nil
}

// restartEach starts a store, restarts it with each number of ranks, and returns the seconds of
// each restart.
func (t *treeRun) restartEach(ctx context.Context, b *testbed, counts []int) (seconds []float64, err error) {
	a, err := t.startApplication(ctx, b.store, "view=job")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	file := func(rank, k int) string { return path.Join(a.cfg.Mount, fmt.Sprintf("ckpt.%d.%d", rank, k)) }
	w := work{size: 64 * nvmf.KiB, transfer: 64 * nvmf.KiB}
	for k := range filesOfRank {
		if _, err := (&side{name: "before", group: a.group, path: file}).write(ctx, w, k); err != nil {
			return nil, err
		}
	}
	for _, n := range counts {
		a.env = t.with(n)
		if err := a.restart(ctx); err != nil {
			return nil, fmt.Errorf("with %s: %w", rankCount(n), err)
		}
		after := &side{name: "after", group: a.group, path: func(rank, k int) string { return file(rank%t.Ranks, k) }}
		read, err := after.read(ctx, w, 0)
		if err != nil {
			return nil, fmt.Errorf("with %s: %w", rankCount(n), err)
		}
		seconds = append(seconds, (a.mounted.Span() + read.Span()).Seconds())
	}
	return seconds, nil
}
