package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// Ranks share this machine's cores with the target, for SPDK's programs and for
// nvmecr's. SPDK's target polls the first core and never shares it. One process of
// SPDK's initiator for each rank polls on the other cores, in turns. An application's
// ranks are processes, so the goal is to be faster than these processes.
//
// A single process that polls a queue for each rank is the best case for SPDK, although
// no application of several ranks can use it. It is compared as well.

// Goals for ranks on few cores.
const (
	ranksFaster = 1.4
	ranksP99    = 3e-3 // seconds
)

// ranksLoads is the work of each rank. count is for nvmecr; SPDK's tool runs for
// perfTime.
var ranksLoads = []struct {
	name string
	load
}{
	{"write 1 MiB", load{false, nvmf.MiB, 256}},
	{"write 32 KiB", load{false, 32 * nvmf.KiB, 4096}},
	{"read 1 MiB", load{true, nvmf.MiB, 256}},
	{"read 32 KiB", load{true, 32 * nvmf.KiB, 4096}},
}

// perfTime is the duration of SPDK's tool in seconds. Several processes of the tool cannot be
// started at the same instant, so their work has to take much longer than the differences of their starts.
const perfTime = "1"

// ranksRounds is the number of rounds.
const ranksRounds = 7

// ranksGoals returns the two goals for a load, before they are measured.
func (g *goalRun) ranksGoals(name string) (faster, p99 result.Goal) {
	what := fmt.Sprintf("%s on %d cores, %s: ", rankCount(g.Ranks), cores(), name)
	return result.Goal{What: what + "our initiators and target beside SPDK's", Limit: ranksFaster, Unit: result.Times},
		result.Goal{What: what + "99th percentile of ours", Limit: ranksP99, AtMost: true, Unit: result.Duration}
}

// spdkRanks compares all ranks together.
func (g *goalRun) spdkRanks(ctx context.Context) (err error) {
	t, why, err := g.besideSPDK(ctx)
	if t != nil && cores() < 2 {
		err = t.Close()
		t, why = nil, "SPDK's target takes a core and its initiators another"
	}
	if t == nil {
		for _, l := range ranksLoads {
			faster, p99 := g.ranksGoals(l.name)
			g.absent(faster, why)
			g.absent(p99, why)
		}
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	r, err := g.startRaw(ctx, t.target)
	if err != nil {
		return err
	}
	t.closers = append(t.closers, r)
	for _, l := range ranksLoads {
		if err := t.ranksOf(ctx, g, r.side("ours"), l.name, l.load); err != nil {
			return fmt.Errorf("%s, %s: %w", rankCount(g.Ranks), l.name, err)
		}
	}
	g.res.Note("SPDK's processes cannot be released together: each runs for %s s, and their rates are added, which flatters them a little.", perfTime)
	return nil
}

// An outcome is the MiB/s of all ranks, and a latency in seconds.
type outcome struct{ rate, p99 float64 }

// outcomes has the outcomes of all rounds.
type outcomes struct{ rate, p99 stats.Sample }

// ranksOf measures one load in turns and adds its goals.
func (t *spdkTrial) ranksOf(ctx context.Context, g *goalRun, ours *side, name string, l load) error {
	w := work{size: nvmf.Bytes(l.count) * l.transfer, transfer: l.transfer}
	total := float64(g.Ranks) * float64(w.size) / float64(nvmf.MiB)
	sides := []func() (outcome, error){
		func() (outcome, error) {
			t.theirs.pause(true)
			defer t.theirs.pause(false)
			r := ours.write
			if l.read {
				r = ours.read
			}
			round, err := r(ctx, w, 0)
			return outcome{total / round.Span().Seconds(), float64(round.Max("p99")) / 1e9}, err
		},
		func() (outcome, error) { return t.perfRanks(ctx, g.Ranks, l) },
		func() (outcome, error) { return t.perfQueues(ctx, g.Ranks, l) },
	}
	all := make([]outcomes, len(sides))
	rounds := ranksRounds
	if g.Quick {
		rounds = 1
	}
	for round := range rounds + 1 {
		t.progress(rankCount(g.Ranks)+", "+name+" beside SPDK", round, rounds+1)
		for i := range sides {
			n := (i + round) % len(sides)
			o, err := sides[n]()
			if err != nil {
				return err
			}
			if round > 0 { // the first round is a warm-up
				all[n].rate, all[n].p99 = append(all[n].rate, o.rate), append(all[n].p99, o.p99)
			}
		}
	}
	return g.addRanks(name, all[0], all[1], all[2])
}

// addRanks adds the results of nvmecr's ranks, of processes of SPDK's tool, and of one
// such process with as many queues.
func (g *goalRun) addRanks(name string, ours, processes, queues outcomes) error {
	faster, p99 := g.ranksGoals(name)
	ratios, err := stats.Ratios(ours.rate, processes.rate)
	if err != nil {
		return err
	}
	faster.Measured = result.Interval(ratios)
	faster.Beside = fmt.Sprintf("%.0f of %.0f MiB/s, %d rounds", ours.rate.Median(), processes.rate.Median(), len(ratios))
	p99.Measured = result.Interval(ours.p99)
	p99.Beside = "SPDK's processes " + result.Duration.Full(processes.p99.Median())
	g.add(faster)
	g.add(p99)
	if ratios, err = stats.Ratios(ours.rate, queues.rate); err != nil {
		return err
	}
	g.res.Comparisons = append(g.res.Comparisons, result.Comparison{
		What: fmt.Sprintf("%s, %s pieces", strings.Fields(name)[0], strings.Join(strings.Fields(name)[1:], " ")),
		Who:  rankCount(g.Ranks) + ", raw", Peer: fmt.Sprintf("SPDK, one process with %d queues", g.Ranks),
		Ratio: result.Interval(ratios), Ours: result.Middle(ours.rate), Theirs: result.Middle(queues.rate), Unit: "MiB/s",
		Why: "one thread polls all queues, and the target another: nobody is ever woken, or has to share a core; but no application of several processes can have it so",
	})
	return nil
}

// perfRanks runs one process of SPDK's tool for each rank, on the cores that its target does not
// use.
func (t *spdkTrial) perfRanks(ctx context.Context, ranks int, l load) (all outcome, err error) {
	type answer struct {
		outcome
		err error
	}
	answers := make(chan answer)
	for r := range ranks {
		go func() {
			o, err := t.perfOutcome(ctx, l, 1+r%(cores()-1), 1)
			answers <- answer{o, err}
		}()
	}
	for range ranks {
		a := <-answers
		all.rate, all.p99, err = all.rate+a.rate, max(all.p99, a.p99), errors.Join(err, a.err)
	}
	return all, err
}

// perfQueues runs one process of SPDK's tool with a queue for each rank.
func (t *spdkTrial) perfQueues(ctx context.Context, ranks int, l load) (outcome, error) {
	return t.perfOutcome(ctx, l, cores()-1, ranks)
}

func (t *spdkTrial) perfOutcome(ctx context.Context, l load, core, queues int) (o outcome, err error) {
	out, err := t.perf(ctx, t.tool, t.theirs.id, l, core, "-q", strconv.Itoa(queues), "-P", strconv.Itoa(queues), "-t", perfTime, "-L")
	if err != nil {
		return o, err
	}
	if o.rate, err = parsePerf(out); err == nil {
		o.p99, err = parsePerfP99(out)
	}
	return o, err
}

// parsePerfP99 returns the seconds of "99.00000% : 123.456us".
func parsePerfP99(out []byte) (float64, error) {
	for _, line := range strings.Split(string(out), "\n") {
		percent, value, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(percent) != "99.00000%" {
			continue
		}
		us, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), "us"), 64)
		return us / 1e6, err
	}
	return 0, fmt.Errorf("%s printed no 99th percentile: %s", spdkPerf, lastLine(out))
}
