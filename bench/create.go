package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/bench/workers"
	"nvmecr/nvmf"
)

// created has the durations of rounds of creating files in seconds, by the name of the
// side.
type created struct {
	ranks   int
	files   float64 // in a round, by all ranks
	seconds map[string]stats.Sample
}

// rawCreates is the name of the side that creates are compared with.
const rawCreates = "raw 4 KiB writes"

// filesEach returns the number of files that a rank creates in a round.
func (e *Env) filesEach() int {
	if e.Quick {
		return 100
	}
	return 2000
}

// A maker is a side whose first n ranks create files.
type maker struct {
	name string
	why  string // reason why the side is faster or slower
	run  func(n, round int) (workers.Round, error)
}

// makers returns the application, the raw queues and the peers. The raw queues write 4
// KiB for each file.
func (b *testbed) makers(ctx context.Context, a *application, raw *side, peers []*side) []maker {
	all := []maker{{name: "nvmecr", run: a.creator(ctx, a.cfg.Mount)}}
	if raw != nil {
		why := "a create is durable when it returns: one log page, one round trip"
		all = append(all, maker{rawCreates, why, func(n, round int) (workers.Round, error) {
			return raw.write(ctx, work{size: nvmf.Bytes(b.env.filesEach()) * 4 * nvmf.KiB, transfer: 4 * nvmf.KiB, ranks: n}, round)
		}})
	}
	for _, p := range peers {
		why := "its creates are in memory only until somebody calls fsync; ours are durable, one round trip each"
		if p.memory {
			why = "its files are memory of the rank's own host, and gone with it; ours are durable, one round trip each"
		}
		all = append(all, maker{p.name, why, a.creator(ctx, filepath.Dir(p.path(0, 0)))})
	}
	return all
}

// createRounds has n ranks of each side create files, in turns.
func (e *Env) createRounds(n int, makers []maker) (created, error) {
	t := created{ranks: n, files: float64(e.filesEach() * n), seconds: make(map[string]stats.Sample)}
	for round := range e.Warm + e.Rounds {
		e.progress("creates by "+rankCount(n), round, e.Warm+e.Rounds)
		for i := range makers {
			m := makers[(i+round)%len(makers)]
			r, err := m.run(n, round)
			if err != nil {
				return t, err
			}
			if round >= e.Warm {
				t.seconds[m.name] = append(t.seconds[m.name], r.Span().Seconds())
			}
		}
	}
	return t, nil
}

// creator returns a function that creates files below dir and then removes them. Only
// the creation is timed.
func (a *application) creator(ctx context.Context, dir string) func(n, round int) (workers.Round, error) {
	command := func(what string, n int) func(int) string {
		return func(rank int) string {
			if rank >= n {
				return ""
			}
			return fmt.Sprintf("%s %d %s", what, a.env.filesEach(), path.Join(dir, fmt.Sprintf("new.%d.", rank)))
		}
	}
	return func(n, _ int) (workers.Round, error) {
		r, err := a.group.Do(ctx, command("create", n))
		if err == nil {
			_, err = a.group.Do(ctx, command("remove", n))
		}
		return r, err
	}
}

// create measures the rate of creating files for growing numbers of ranks.
func create(ctx context.Context, e *Env) (res *result.Result, err error) {
	b, err := e.testbed(ctx, e.Size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, raw, err := b.besideRaw(ctx)
	if err != nil {
		return nil, err
	}
	res = &result.Result{}
	if raw == nil {
		res.NotMeasured(rawCreates, "%s", b.why)
	}
	var peers []*side
	if !e.Quick || len(e.Peers) > 0 {
		if peers, err = b.peers(ctx, a, res); err != nil {
			return nil, err
		}
	}
	makers := b.makers(ctx, a, raw, peers)
	plot := result.Plot{Title: "Files made", X: result.Axis{Name: "ranks", Unit: result.Whole, Log: true}, Y: result.Axis{Name: "all ranks", Unit: "creates/s"}}
	var all created
	for _, n := range powers(a.group.Size()) {
		if all, err = e.createRounds(n, makers); err != nil {
			return nil, err
		}
		for _, m := range makers {
			plot.Add(m.name, float64(n), result.Per(all.files, all.seconds[m.name]))
		}
	}
	res.Plots = append(res.Plots, plot)
	rate := result.Per(all.files, all.seconds["nvmecr"]).Value
	res.Claims = append(res.Claims, paper.CreatesLess.Beside("%.0f creates/s in all", rate), paper.CreatesMore.Beside("a private namespace has no directory to share"))
	return res, e.creates(res, makers, all)
}

// creates adds a table of the rates of all ranks for each side, and the comparisons of the
// application with the other sides.
func (e *Env) creates(res *result.Result, makers []maker, all created) error {
	table := result.Table{Title: fmt.Sprintf("%.0f empty files, an equal part by each of %s", all.files, rankCount(all.ranks)), Rows: "side",
		Columns: []result.Column{{Name: "creates", Unit: "1/s"}, {Name: "each", Unit: result.Duration}}}
	ours := all.seconds["nvmecr"]
	for i, m := range makers {
		theirs := all.seconds[m.name]
		each := make(stats.Sample, len(theirs))
		for i, v := range theirs {
			each[i] = v / float64(e.filesEach())
		}
		table.Add(m.name, result.Number(result.Per(all.files, theirs)), result.Number(result.Middle(each)))
		if i == 0 {
			continue
		}
		ratios, err := stats.Ratios(theirs, ours)
		if err != nil {
			return err
		}
		res.Comparisons = append(res.Comparisons, result.Comparison{What: "file creates, " + rankCount(all.ranks), Peer: m.name, Ratio: result.Interval(ratios),
			Ours: result.Per(all.files, ours), Theirs: result.Per(all.files, theirs), Unit: "creates/s", Why: m.why, Ceiling: m.name == rawCreates})
	}
	res.Tables = append(res.Tables, table)
	return nil
}
