package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// A rank of an application, through the preload, is compared with SPDK's own tool on
// SPDK's target. The result is the application's share of SPDK's performance. The
// target polls the first core and does not share it. All other processes use the last
// core in turns. A raw queue with each driver does the same work, which shows the costs
// of the initiator and of the layers above it.

// rankLimit is the goal as a share of the rate of SPDK's tool. It requires that the
// initiator is as fast as SPDK's, and that a rank with data checksums reaches this
// share of a raw queue.
const rankLimit = 0.9

// rankSize is the size of the rank's checkpoint.
const rankSize = 192 * nvmf.MiB

// rankLoads is the work of each side; count is for SPDK's tool.
var rankLoads = []struct {
	name string
	load
	limit float64 // 0 means that there is no goal
}{
	{"write 1 MiB", load{false, nvmf.MiB, 800}, rankLimit},
	{"read 1 MiB", load{true, nvmf.MiB, 800}, rankLimit},
	{"write 32 KiB", load{false, 32 * nvmf.KiB, 8000}, 0},
	{"read 32 KiB", load{true, 32 * nvmf.KiB, 8000}, 0},
}

// rankGoal returns the goal for a load before it is measured.
func rankGoal(name string, driver dial.Driver, limit float64) result.Goal {
	return result.Goal{What: fmt.Sprintf("%s, one at a time: a rank through the preload, driver %s, beside SPDK's initiator, on SPDK's target", name, driver),
		Limit: limit, Aside: limit == 0, Unit: result.Ratio}
}

// A rankTrial has SPDK's tool and target, and with each driver a rank and a raw queue.
type rankTrial struct {
	*Env    // for one rank
	tool    string
	theirs  *spdkNamespace
	drivers []dial.Driver
	ranks   []*side
	raw     []*side
	closers []io.Closer
}

// spdkRank measures all sides.
func (g *goalRun) spdkRank(ctx context.Context) (err error) {
	t, why, err := g.oneRank(ctx)
	if t == nil {
		for _, l := range rankLoads {
			g.absent(rankGoal(l.name, dial.Go, l.limit), why)
		}
		return err
	}
	defer func() { err = errors.Join(err, closeAll(t.closers)) }()
	if err := t.start(ctx); err != nil {
		return err
	}
	for _, l := range rankLoads {
		rates, err := t.rates(ctx, l.name, l.load, g.Rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		for i, driver := range t.drivers {
			if err := g.addRank(rankGoal(l.name, driver, l.limit), rates[0], rates[1+2*i], rates[2+2*i]); err != nil {
				return err
			}
		}
	}
	g.res.Note("A rank's checkpoint on SPDK's target is %s, from open to close, fsync included; SPDK's tool opens nothing and flushes nothing.", nvmf.Bytes(rankSize))
	return nil
}

// oneRank starts the target. It returns nil and the reason if that is not possible.
func (g *goalRun) oneRank(ctx context.Context) (t *rankTrial, why string, err error) {
	if cores() < 2 {
		return nil, "SPDK's target takes a core and the rank another", nil
	}
	if g.SPDKTarget != "" {
		return nil, "--spdk-target names one namespace, and the rank and SPDK's tool take two", nil
	}
	tool, err := g.findSPDK(spdkPerf)
	if err != nil {
		return nil, spdkPerf + " is not in PATH; name its directory with --spdk", nil
	}
	t = &rankTrial{Env: g.with(1), tool: tool, drivers: []dial.Driver{dial.Go}}
	if len(dial.Drivers()) > 1 {
		t.drivers = append(t.drivers, dial.SPDK)
	}
	if t.theirs, err = t.startSPDK(ctx, max(spdkSize, t.namespace(rankSize)), 1+len(t.drivers)); err != nil {
		return nil, err.Error(), ctx.Err()
	}
	t.closers = append(t.closers, t.theirs)
	return t, "", nil
}

// start starts the ranks and the raw queues.
func (t *rankTrial) start(ctx context.Context) error {
	if err := touch(ctx, t.theirs.id); err != nil {
		return err
	}
	core := strconv.Itoa(cores() - 1)
	for i, driver := range t.drivers {
		where := t.theirs.more[i]
		if err := touch(ctx, where); err != nil {
			return err
		}
		a, err := t.startApplication(ctx, []nvmf.TransportID{where}, "driver="+string(driver), pinned+"="+core)
		if err != nil {
			return err
		}
		t.closers = append(t.closers, a)
		c, err := t.startGroup(ctx, base(), t.Bench, "rank-raw", "--driver", string(driver), "--core", core, "--namespace", t.theirs.id.String())
		if err != nil {
			return err
		}
		r := &raw{c}
		t.closers = append(t.closers, r)
		t.ranks = append(t.ranks, a.side("a rank, driver "+string(driver)))
		t.raw = append(t.raw, r.side("raw, driver "+string(driver)))
	}
	return nil
}

// rates returns the MiB/s of SPDK's tool, and then, for each driver, of the rank and of the raw
// queue.
func (t *rankTrial) rates(ctx context.Context, name string, l load, rounds int) ([]stats.Sample, error) {
	k, w := 0, work{size: rankSize, transfer: l.transfer}
	own := func(s *side) func() (float64, error) {
		return func() (float64, error) {
			do := s.write
			if l.read {
				do = s.read
			}
			round, err := do(ctx, w, k)
			return float64(w.size) / float64(nvmf.MiB) / round.Span().Seconds(), err
		}
	}
	sides := []func() (float64, error){func() (float64, error) { return t.perfRate(ctx, t.tool, t.theirs.id, l, 1) }}
	for i := range t.drivers {
		sides = append(sides, own(t.ranks[i]), own(t.raw[i]))
	}
	return ratesInTurns(rounds, sides, func(round int) {
		if k = round; l.read {
			k = rounds // read the checkpoint of the last round of writes
		}
		t.progress(name+" through the preload beside SPDK", round, rounds+1)
	})
}

// addRank adds the results with a driver.
func (g *goalRun) addRank(goal result.Goal, tool, rank, raw stats.Sample) error {
	ratios, err := stats.Ratios(rank, tool)
	if err != nil {
		return err
	}
	above, err := stats.Ratios(rank, raw)
	if err != nil {
		return err
	}
	of := result.Interval(above)
	goal.Measured = result.Interval(ratios)
	goal.Beside = fmt.Sprintf("%.0f of %.0f MiB/s, %d rounds; %.2f (%.2f to %.2f) of a raw queue's %.0f",
		rank.Median(), tool.Median(), len(ratios), of.Value, of.Low, of.High, raw.Median())
	g.add(goal)
	return nil
}

// ratesInTurns has all sides do their work, beginning with another side in each round,
// and returns their rates. The first round is a warm-up. before is called before each
// round.
func ratesInTurns(rounds int, sides []func() (float64, error), before func(round int)) ([]stats.Sample, error) {
	rates := make([]stats.Sample, len(sides))
	for round := range rounds + 1 {
		before(round)
		for i := range sides {
			n := (i + round) % len(sides)
			rate, err := sides[n]()
			if err != nil {
				return nil, err
			}
			if round > 0 {
				rates[n] = append(rates[n], rate)
			}
		}
	}
	return rates, nil
}
