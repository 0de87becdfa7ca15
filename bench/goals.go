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

// goals measures the project's goals on one machine in a short time. All sides use
// memory of this host, and the ranks are processes on this host.
func goals(ctx context.Context, e *Env) (*result.Result, error) {
	if e.remote() {
		return nil, errors.New("the goals are about one machine: leave --launch out, and do not start it through mpirun or srun")
	}
	res := &result.Result{}
	g := &goalRun{res: res}
	for i, part := range goalParts {
		g.Env = e.within(i, len(goalParts))
		if e.Only != "" && e.Only != part.name {
			continue
		}
		if !e.until.IsZero() && time.Now().After(e.until) {
			res.NotMeasured(part.name, "%s", timeOver)
			continue
		}
		switch err := part.run(g, ctx); {
		case err == nil:
		case ctx.Err() != nil || e.Only != "":
			return nil, fmt.Errorf("%s: %w", part.name, err)
		default: // the goals of the other parts are still valid
			res.NotMeasured(part.name, "%v", err)
		}
	}
	return res, nil
}

// goalParts are measured in this order.
var goalParts = []struct {
	name string
	run  func(*goalRun, context.Context) error
}{
	{"bandwidth", (*goalRun).bandwidth},
	{"raw", (*goalRun).raw},
	{"latency", (*goalRun).latency},
	{"creates", (*goalRun).creates},
	{"kernel", (*goalRun).kernel},
	{"ranks", (*goalRun).ranks},
	{"quiet", (*goalRun).quiet},
	{"allocations", (*goalRun).allocations},
	{"plan", (*goalRun).plan},
	{"calls", (*goalRun).calls},
	{"memory", (*goalRun).memory},
	{"background", goalsOf(background)},
	{"startup", goalsOf(startup)},
	{"replay", goalsOf(replay)},
	{"view", goalsOf(view)},
	{"tree", goalsOf(jobTree)},
	{"level2", (*goalRun).level2},
	{"copies", (*goalRun).copies},
	{"mirror", (*goalRun).mirror},
	{"spdk", (*goalRun).spdk},
	{"spdk-rank", (*goalRun).spdkRank},
	{"spdk-ranks", (*goalRun).spdkRanks},
	{"spdk-driver", (*goalRun).spdkDriver},
}

// GoalParts returns the valid values of Env.Only.
func GoalParts() []string {
	var names []string
	for _, part := range goalParts {
		names = append(names, part.name)
	}
	return names
}

// goalRun collects the measured goals.
type goalRun struct {
	*Env
	res *result.Result
}

// goalsOf returns a function that adds the goals of an experiment.
func goalsOf(run func(context.Context, *Env) (*result.Result, error)) func(*goalRun, context.Context) error {
	return func(g *goalRun, ctx context.Context) error {
		res, err := run(ctx, g.Env)
		if err != nil {
			return err
		}
		g.res.Goals = append(g.res.Goals, res.Goals...)
		g.res.Claims = append(g.res.Claims, res.Claims...)
		g.res.Missing = append(g.res.Missing, res.Missing...)
		return nil
	}
}

func (g *goalRun) add(goal result.Goal) { g.res.Goals = append(g.res.Goals, goal) }

// ratio adds a goal for the share of a ceiling's rate. It computes the share from the
// times of both sides for the same amount, round by round.
func (g *goalRun) ratio(what string, limit float64, ours, theirs stats.Sample, amount float64, unit result.Unit) error {
	ratios, err := stats.Ratios(theirs, ours)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	g.add(result.Goal{
		What: what, Limit: limit, Unit: result.Ratio, Measured: result.Interval(ratios), Ceiling: true,
		Beside: fmt.Sprintf("%s of %s", unit.Format(result.Per(amount, ours).Value), unit.Full(result.Per(amount, theirs).Value)),
	})
	return nil
}

// absent adds a goal that could not be measured.
func (g *goalRun) absent(goal result.Goal, why string) {
	goal.Absent, goal.Why = true, why
	g.add(goal)
}

// bandwidth compares checkpoints and recovery with raw queues, for all ranks and for
// one rank.
func (g *goalRun) bandwidth(ctx context.Context) error {
	for _, ranks := range []int{g.Ranks, 1} {
		for _, c := range []struct {
			setting, name string
			write, read   float64
		}{{"data-checksum=on", "data checksums", 0.90, 0.90}, {"data-checksum=off", "no data checksums", 0.93, 0.97}} {
			what := fmt.Sprintf("%s, %s, %s pieces", rankCount(ranks), c.name, g.Transfer)
			e := g.with(ranks)
			if ranks == 1 { // as much data as all ranks have: otherwise the measurement would be too short
				e.Size *= nvmf.Bytes(g.Ranks)
			}
			if err := e.writeAndRecover(ctx, g, what, c.setting, c.write, c.read); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeAndRecover adds the goals for writing and reading with one configuration.
func (e *Env) writeAndRecover(ctx context.Context, g *goalRun, what, setting string, write, read float64) (err error) {
	b, err := e.testbed(ctx, e.Size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, raw, err := b.besideRaw(ctx, setting)
	if err != nil {
		return err
	}
	if raw == nil {
		g.absent(result.Goal{What: "write beside raw, " + what, Limit: write, Unit: result.Ratio}, b.why)
		g.absent(result.Goal{What: "read after a restart beside raw, " + what, Limit: read, Unit: result.Ratio}, b.why)
		return nil
	}
	total := float64(e.Ranks) * float64(e.Size) / float64(nvmf.MiB)
	app, half := a.side("nvmecr"), *e // more rounds of half the length give narrower intervals
	half.Rounds = 2*e.Rounds + 1
	w := work{size: max(e.Size/2/e.Transfer, 1) * e.Transfer, transfer: e.Transfer}
	took, err := half.inTurns(ctx, "checkpoints, "+what, w, false, app, raw)
	if err != nil {
		return err
	}
	written := float64(e.Ranks) * float64(w.size) / float64(nvmf.MiB)
	if err := g.ratio("write beside raw, "+what, write, spans(took[app].write), spans(took[raw].write), written, "MiB/s"); err != nil {
		return err
	}
	t, err := e.recoverRounds(ctx, "recovery, "+what, work{size: e.Size, transfer: e.Transfer}, a, raw)
	if err != nil {
		return err
	}
	return g.ratio("read after a restart beside raw, "+what, read, t.read, t.raw, total, "MiB/s")
}

// raw compares the raw side with the sockets baseline.
func (g *goalRun) raw(ctx context.Context) error {
	for _, ranks := range []int{1, g.Ranks} {
		e := g.with(ranks)
		if ranks == 1 {
			e.Size *= nvmf.Bytes(g.Ranks)
		}
		t, err := e.rawBesideSockets(ctx)
		if err != nil {
			return err
		}
		for _, c := range t {
			if c.limit == 0 {
				continue
			}
			what := fmt.Sprintf("raw write beside the sockets baseline, %s, %s pieces", rankCount(ranks), c.transfer)
			if err := g.ratio(what, c.limit, spans(c.raw.write), spans(c.sockets.write), c.mib, "MiB/s"); err != nil {
				return err
			}
		}
	}
	return nil
}

// latency compares the latency of a write with that of a raw write.
func (g *goalRun) latency(ctx context.Context) (err error) {
	e := g.with(1)
	b, err := e.testbed(ctx, e.Size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, raw, err := b.besideRaw(ctx)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		transfer nvmf.Bytes
		limit    float64
	}{{32 * nvmf.KiB, 3e-6}, {4 * nvmf.KiB, 4e-6}} {
		goal := result.Goal{
			What:  fmt.Sprintf("a synchronous %s write costs more than a raw one by", c.transfer),
			Limit: c.limit, AtMost: true, Unit: result.Duration,
		}
		if raw == nil {
			g.absent(goal, b.why)
			continue
		}
		app := a.side("nvmecr")
		few := *e
		few.Rounds = 2*e.Rounds + 1
		took, err := few.inTurns(ctx, "writes of "+c.transfer.String(), work{size: 1024 * c.transfer, transfer: c.transfer}, false, app, raw)
		if err != nil {
			return err
		}
		ours, theirs := medians(took[app].write), medians(took[raw].write)
		var more stats.Sample
		for i := range ours {
			more = append(more, ours[i]-theirs[i])
		}
		goal.Measured = result.Interval(more)
		goal.Beside = fmt.Sprintf("medians %s and %s", result.Duration.Full(ours.Median()), result.Duration.Full(theirs.Median()))
		g.add(goal)
		if c.transfer == 32*nvmf.KiB {
			g.add(result.Goal{
				What: "polling, 1 rank, a core for it and one for the target: sleeps a 32 KiB write", Limit: sleepsAlone, AtMost: true,
				Unit: result.Plain, Measured: result.Interval(sleeps(took[app].write)),
			})
		}
	}
	return nil
}

// Polling has to adapt to the load. A rank with its own core hardly ever sleeps while
// it waits. If there are more ranks than cores, a rank sleeps instead of polling while
// another rank could compute. Values between these limits occur by chance.
const (
	sleepsAlone   = 0.1
	sleepsCrowded = 0.5
)

// sleeps returns the number of times that the calling thread slept in a call, round by
// round.
func sleeps(rounds []workers.Round) stats.Sample {
	s := make(stats.Sample, len(rounds))
	for i, r := range rounds {
		s[i] = float64(r.Sum("sleeps")) / float64(r.Sum("calls"))
	}
	return s
}

// creates compares creating files with raw writes of 4 KiB, with one rank.
func (g *goalRun) creates(ctx context.Context) (err error) {
	e := g.with(1)
	b, err := e.testbed(ctx, 64*nvmf.MiB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, raw, err := b.besideRaw(ctx)
	if err != nil {
		return err
	}
	const what = "file creates beside raw 4 KiB writes, one at a time"
	if raw == nil {
		g.absent(result.Goal{What: what, Limit: 0.9, Unit: result.Ratio}, b.why)
		return nil
	}
	t, err := e.createRounds(1, b.makers(ctx, a, raw, nil))
	if err != nil {
		return err
	}
	return g.ratio(what, 0.9, t.seconds["nvmecr"], t.seconds[rawCreates], t.files, "creates/s")
}

// manyRanks are the numbers of ranks to measure.
var manyRanks = []int{1, 2, 4, 8, 16, 32}

// ranks measures the bandwidth of all ranks together if there are more ranks than
// cores.
func (g *goalRun) ranks(ctx context.Context) error {
	rates := make(map[int]stats.Sample)
	size, crowd := g.Size/4, 0
	for _, n := range manyRanks { // the first number that gives each core several ranks
		if crowd == 0 && n >= 4*cores() {
			crowd = n
		}
	}
	for _, n := range manyRanks {
		e := g.with(n)
		if e.namespace(size)*2 > freeMemory()/2 {
			g.res.NotMeasured(rankCount(n), "memory is short")
			break
		}
		rounds, err := e.aggregate(ctx, size)
		if err != nil {
			return err
		}
		if n == crowd {
			g.add(result.Goal{
				What: fmt.Sprintf("polling, %s on %d cores: sleeps a %s write", rankCount(n), cores(), e.Transfer), Limit: sleepsCrowded,
				Unit: result.Plain, Measured: result.Interval(sleeps(rounds)),
			})
		}
		for _, s := range spans(rounds) {
			rates[n] = append(rates[n], float64(n)*float64(size)/float64(nvmf.MiB)/s)
		}
	}
	goal := leastAggregate(rates, cores())
	if goal == nil {
		return nil // the memory is short, as was said
	}
	g.add(*goal)
	return nil
}

// leastAggregate returns the goal for the least bandwidth beside the best one. The best
// one is of any number of ranks. The least one is of those which give each core a rank:
// fewer ranks leave cores idle, and have less bandwidth for that reason. It returns nil
// if none of these was measured.
func leastAggregate(rates map[int]stats.Sample, cores int) *result.Goal {
	most := manyRanks[len(manyRanks)-1]
	best, least, from, at := 0.0, 0.0, 0, 0
	for _, n := range manyRanks {
		if len(rates[n]) == 0 {
			continue
		}
		m := rates[n].Median()
		best = max(best, m)
		if n < min(cores, most) {
			continue
		}
		if from == 0 {
			from = n
		}
		if at == 0 || m < least {
			least, at = m, n
		}
	}
	if at == 0 {
		return nil
	}
	lowest := make(stats.Sample, len(rates[at]))
	for i, r := range rates[at] {
		lowest[i] = r / best
	}
	return &result.Goal{
		What: fmt.Sprintf("least aggregate of %d to %d ranks (%d) beside the best of 1 to %d", from, most, at, most), Limit: 0.9, Unit: result.Ratio,
		Measured: result.Interval(lowest), Beside: fmt.Sprintf("%.0f of %.0f MiB/s", least, best),
	}
}

// aggregate returns rounds of checkpoints of all ranks.
func (e *Env) aggregate(ctx context.Context, size nvmf.Bytes) (rounds []workers.Round, err error) {
	b, err := e.testbed(ctx, size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, err := b.application(ctx)
	if err != nil {
		return nil, err
	}
	app := a.side("nvmecr")
	took, err := e.inTurns(ctx, "checkpoints of "+rankCount(e.Ranks), work{size: size, transfer: e.Transfer}, false, app)
	if err != nil {
		return nil, err
	}
	return took[app].write, nil
}

// memory measures the memory that a million writes occupy.
func (g *goalRun) memory(ctx context.Context) (err error) {
	e := g.with(1)
	b, err := e.testbed(ctx, 256*nvmf.MiB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, err := b.application(ctx)
	if err != nil {
		return err
	}
	app, w := a.side("nvmecr"), work{size: 256 * nvmf.MiB, transfer: 4 * nvmf.KiB}
	passes := 16 // a million writes
	if e.Quick {
		passes = 2
	}
	var first, last float64
	for pass := range passes {
		e.progress("a million writes", pass, passes)
		if _, err := app.write(ctx, w, pass); err != nil {
			return err
		}
		if last, err = resident(ctx, a.group, "/nonexistent"); err != nil {
			return err
		}
		if pass == 0 {
			first = last
		}
	}
	g.add(result.Goal{
		What: fmt.Sprintf("memory of a rank grows in %d more writes of 4 KiB by", (passes-1)*65536), Limit: float64(nvmf.MiB), AtMost: true,
		Unit: result.Size, Measured: result.Exactly(last - first), Beside: fmt.Sprintf("%.1f MiB then", last/float64(nvmf.MiB)),
	})
	return nil
}
