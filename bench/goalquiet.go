package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/bench/workers"
	"nvmecr/nvmf"
)

// watched is the minimum time of observing the runtime's threads, over all phases. It
// is longer than the interval of periodic work such as keep-alives. A phase is much
// shorter, so that other load of the machine affects both sides equally.
const (
	watched = 20 * time.Second
	phase   = 500 * time.Millisecond
)

// quiet measures how much processor time an idle runtime takes from a compute phase.
// The same loop runs on the same core, with and without the runtime, in turns.
// Meanwhile the runtime's threads are observed.
func (g *goalRun) quiet(ctx context.Context) (err error) {
	e := g.with(1)
	b, err := e.testbed(ctx, 32*nvmf.MiB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	plain, err := e.startGroup(ctx, base(), e.Rank)
	if err != nil {
		return err
	}
	b.closers = append(b.closers, closer(plain.Stop))
	a, err := b.application(ctx, pinned+"=0")
	if err != nil {
		return err
	}
	if _, err := plain.DoAll(ctx, "pin 0"); err != nil {
		return err
	}
	if _, err := a.side("nvmecr").write(ctx, work{size: 32 * nvmf.MiB, transfer: nvmf.MiB}, 0); err != nil {
		return err
	}
	if _, err := a.group.DoAll(ctx, "watch"); err != nil {
		return err
	}
	lost, err := e.losses(ctx, a.group, plain)
	if err != nil {
		return err
	}
	r, err := a.group.DoAll(ctx, "watch")
	if err != nil {
		return err
	}
	if r[0].Number("threads") == 0 {
		return errors.New("the rank has no thread that is called nvmecr")
	}
	seconds := r[0].Time("watched").Seconds()
	g.add(result.Goal{
		What: "wake-ups a second of our busiest thread between checkpoints", Limit: 2, AtMost: true, Unit: result.Plain,
		Measured: result.Exactly(float64(r[0].Number("wakes")) / seconds),
		Beside:   fmt.Sprintf("%d in %.0f s; %d threads of ours, the rank computing or waiting in turns", r[0].Number("wakes"), seconds, r[0].Number("threads")),
	})
	g.add(result.Goal{
		What: "a pinned compute loop loses", Limit: 0.003, AtMost: true, Unit: result.Percent, Measured: result.Interval(lost),
	})
	return nil
}

// losses returns the part of its compute loop's turns that a rank under nvmecr loses
// compared with a plain rank, pair by pair.
func (e *Env) losses(ctx context.Context, ours, plain *workers.Group) (lost stats.Sample, err error) {
	rounds := int(watched/(2*phase)) + 1
	if e.Quick {
		rounds = 2
	}
	for round := range rounds {
		e.progress("compute phases", round, rounds)
		var turns [2]float64
		for i := range 2 {
			which := (i + round) % 2
			r, err := []*workers.Group{ours, plain}[which].DoAll(ctx, fmt.Sprintf("compute %d", phase.Nanoseconds()))
			if err != nil {
				return nil, err
			}
			turns[which] = float64(r[0].Number("turns"))
		}
		lost = append(lost, 1-turns[0]/turns[1])
	}
	return lost, nil
}
