package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// The SPDK driver, if the program includes it. On SPDK's target it is compared with
// SPDK's own tool at the same size and queue depth, which shows the performance of the
// library. It is also compared with the Go driver, for raw queues and for checkpoints.

// driverLimit is the goal: a share of the rate of SPDK's tool.
const driverLimit = 0.96

// driverDepths are the numbers of operations in flight.
var driverDepths = []int{1, 8, 32}

// driverLoads is the work of each side at each depth.
var driverLoads = []struct {
	name string
	load
}{
	{"write 1 MiB", load{false, nvmf.MiB, 800}},
	{"read 1 MiB", load{true, nvmf.MiB, 800}},
	{"write 32 KiB", load{false, 32 * nvmf.KiB, 8000}},
	{"read 32 KiB", load{true, 32 * nvmf.KiB, 8000}},
	{"write 4 KiB", load{false, 4 * nvmf.KiB, 16000}},
	{"read 4 KiB", load{true, 4 * nvmf.KiB, 16000}},
}

// inFlight describes a depth.
func inFlight(depth int) string {
	if depth == 1 {
		return "one at a time"
	}
	return fmt.Sprintf("%d in flight", depth)
}

// driverGoal returns the goal for a load before it is measured.
func driverGoal(name string, depth int) result.Goal {
	return result.Goal{What: fmt.Sprintf("%s, %s: driver spdk beside SPDK's initiator", name, inFlight(depth)), Limit: driverLimit, Unit: result.Ratio}
}

// spdkDriver compares the drivers.
func (g *goalRun) spdkDriver(ctx context.Context) (err error) {
	t, why, err := g.drivers(ctx)
	if t == nil {
		for _, l := range driverLoads {
			for _, depth := range driverDepths {
				g.absent(driverGoal(l.name, depth), why)
			}
		}
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for _, l := range driverLoads {
		for _, depth := range driverDepths {
			if err := t.streams(ctx, g, l.name, l.load, depth); err != nil {
				return fmt.Errorf("%s, %s: %w", l.name, inFlight(depth), err)
			}
		}
	}
	return t.checkpoints(ctx, g)
}

// noFlowControl makes SPDK's tool disable flow control of its submission queues, as
// nvmecr's drivers do. A target may then send the completion of a read with its data.
// This is not the tool's default. Older tools have no such option, and their targets do
// so in any case.
const noFlowControl = "--disable-sq-flow-control"

// A driverTrial has SPDK's tool and target.
type driverTrial struct {
	*goalRun
	tool    string
	asks    bool // the tool has the option noFlowControl
	theirs  *spdkNamespace
	closers []io.Closer
}

// drivers starts the target. It returns nil and the reason if that is not possible.
func (g *goalRun) drivers(ctx context.Context) (t *driverTrial, why string, err error) {
	if len(dial.Drivers()) == 1 {
		return nil, "nvmecr was built without SPDK (`make SPDK=1`)", nil
	}
	tool, err := g.findSPDK(spdkPerf)
	if err != nil {
		return nil, spdkPerf + " is not in PATH; name its directory with --spdk", nil
	}
	theirs, err := g.startSPDK(ctx, max(spdkSize, g.namespace(g.Size)), 2)
	if err != nil {
		return nil, err.Error(), ctx.Err()
	}
	t = &driverTrial{goalRun: g, tool: tool, theirs: theirs, closers: []io.Closer{theirs}}
	said, err := exec.CommandContext(ctx, tool, noFlowControl, "--help").CombinedOutput() // the help does not list the option
	t.asks = err == nil && !bytes.Contains(said, []byte("unrecognized option"))
	err = touch(ctx, theirs.id)
	for _, id := range theirs.more {
		err = errors.Join(err, touch(ctx, id))
	}
	if err != nil {
		return nil, "", errors.Join(err, t.Close())
	}
	return t, "", nil
}

// rank starts a raw rank on the last core, which SPDK's tool uses as well. The rank
// runs one load, since the tool makes a new connection for each.
func (t *driverTrial) rank(ctx context.Context, driver dial.Driver) (*raw, error) {
	c, err := t.with(1).startGroup(ctx, base(), t.Bench, "rank-raw", "--driver", string(driver),
		"--core", strconv.Itoa(cores()-1), "--namespace", t.theirs.id.String())
	if err != nil {
		return nil, err
	}
	return &raw{c}, nil
}

// Close ends everything that the trial has started.
func (t *driverTrial) Close() error { return closeAll(t.closers) }

// streams measures one load at one depth, in turns.
func (t *driverTrial) streams(ctx context.Context, g *goalRun, name string, l load, depth int) (err error) {
	spdk, err := t.rank(ctx, dial.SPDK)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, spdk.Close()) }()
	ours, err := t.rank(ctx, dial.Go)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.Close()) }()
	own := func(r *raw) func() (float64, error) {
		s := r.side(name)
		s.path = func(int, int) string { return strconv.Itoa(depth) }
		w := work{size: nvmf.Bytes(l.count) * l.transfer, transfer: l.transfer}
		return func() (float64, error) {
			do := s.write
			if l.read {
				do = s.read
			}
			round, err := do(ctx, w, 0)
			return float64(w.size) / float64(nvmf.MiB) / round.Span().Seconds(), err
		}
	}
	theirs := func(more ...string) func() (float64, error) {
		return func() (float64, error) { return t.perfRate(ctx, t.tool, t.theirs.id, l, depth, more...) }
	}
	sides := []func() (float64, error){theirs(), own(spdk), own(ours)}
	if t.asks {
		sides = append(sides, theirs(noFlowControl))
	}
	rates, err := ratesInTurns(g.Rounds, sides, func(pair int) {
		g.progress(fmt.Sprintf("%s, %s: drivers", name, inFlight(depth)), pair, g.Rounds+1)
	})
	if err != nil {
		return err
	}
	return g.addDriver(driverGoal(name, depth), rates)
}

// addDriver adds the results of the sides of streams.
func (g *goalRun) addDriver(goal result.Goal, rates []stats.Sample) error {
	tool, spdk := rates[0], rates[1]
	ratios, err := stats.Ratios(spdk, tool)
	if err != nil {
		return err
	}
	goal.Measured = result.Interval(ratios)
	goal.Beside = fmt.Sprintf("%.0f of %.0f MiB/s, %d pairs", spdk.Median(), tool.Median(), len(ratios))
	for i, other := range rates[2:] {
		if ratios, err = stats.Ratios(spdk, other); err != nil {
			return err
		}
		beside := result.Interval(ratios)
		goal.Beside += fmt.Sprintf("; %.2f (%.2f to %.2f) of %s %.0f", beside.Value, beside.Low, beside.High,
			[]string{"driver go's", "its initiator's with " + noFlowControl}[i], other.Median())
	}
	g.add(goal)
	return nil
}

// checkpoints compares the drivers of applications.
func (t *driverTrial) checkpoints(ctx context.Context, g *goalRun) error {
	const what = "driver spdk beside driver go, checkpoints on SPDK's target"
	if len(t.theirs.more) == 0 {
		g.absent(result.Goal{What: what, Aside: true, Unit: result.Ratio}, "--spdk-target names one namespace, and each driver takes one")
		return nil
	}
	var sides []*side
	for _, d := range []struct {
		driver dial.Driver
		where  nvmf.TransportID
	}{{dial.SPDK, t.theirs.id}, {dial.Go, t.theirs.more[0]}} {
		a, err := g.startApplication(ctx, []nvmf.TransportID{d.where}, "driver="+string(d.driver))
		if err != nil {
			return err
		}
		t.closers = append(t.closers, a)
		sides = append(sides, a.side("driver "+string(d.driver)))
	}
	for _, transfer := range []nvmf.Bytes{g.Transfer, 32 * nvmf.KiB} {
		took, err := g.inTurns(ctx, what, work{size: g.Size, transfer: transfer}, true, sides...)
		if err != nil {
			return err
		}
		total := float64(g.Ranks) * float64(g.Size) / float64(nvmf.MiB)
		spdk, own := took[sides[0]], took[sides[1]]
		for _, d := range []struct {
			name      string
			spdk, own stats.Sample
		}{{"write", spans(spdk.write), spans(own.write)}, {"read", spans(spdk.read), spans(own.read)}} {
			ratios, err := stats.Ratios(d.own, d.spdk)
			if err != nil {
				return err
			}
			g.add(result.Goal{
				What: fmt.Sprintf("%s, %s, %s in pieces of %s", what, rankCount(g.Ranks), d.name, transfer), Aside: true, Unit: result.Ratio,
				Measured: result.Interval(ratios),
				Beside:   fmt.Sprintf("%.0f of %.0f MiB/s", result.Per(total, d.spdk).Value, result.Per(total, d.own).Value),
			})
		}
	}
	return nil
}
