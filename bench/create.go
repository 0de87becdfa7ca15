package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"

	"nvmecr/bench/crew"
	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// created is the seconds that rounds of creating took.
type created struct {
	files     float64 // of all ranks, a round
	ours, raw stats.Sample
	why       string                  // there is no raw side
	peers     map[string]stats.Sample // by name
}

// rawCreates is what creates are measured by.
const rawCreates = "raw 4 KiB writes"

// filesEach is how many files a rank makes in a round.
func (e *Env) filesEach() int {
	if e.Quick {
		return 100
	}
	return 2000
}

// createRates makes empty files in turns with raw writes of 4 KiB, as many, and
// with peers.
func (e *Env) createRates(ctx context.Context, peers []Peer) (t created, err error) {
	b, err := e.bed(ctx, 64*nvmf.MiB)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, raw, err := b.besideRaw(ctx)
	if err != nil {
		return t, err
	}
	t.why, t.files, t.peers = b.why, float64(e.filesEach()*a.crew.Size()), make(map[string]stats.Sample)
	type maker struct {
		run  func(round int) (crew.Round, error)
		took func(float64)
	}
	makers := []maker{{a.creator(ctx, a.cfg.Mount), func(s float64) { t.ours = append(t.ours, s) }}}
	if raw != nil {
		w := work{size: nvmf.Bytes(e.filesEach()) * 4 * nvmf.KiB, transfer: 4 * nvmf.KiB}
		makers = append(makers, maker{func(round int) (crew.Round, error) { return raw.write(ctx, w, round) },
			func(s float64) { t.raw = append(t.raw, s) }})
	}
	for _, p := range peers {
		s, err := b.peerSide(ctx, a, p)
		if err != nil {
			return t, err
		}
		makers = append(makers, maker{a.creator(ctx, filepath.Dir(s.path(0, 0))), func(s float64) { t.peers[p.Name] = append(t.peers[p.Name], s) }})
	}
	for round := range e.Warm + e.Rounds {
		e.progress("creates", round, e.Warm+e.Rounds)
		for i := range makers {
			m := makers[(i+round)%len(makers)]
			r, err := m.run(round)
			if err != nil {
				return t, err
			}
			if round >= e.Warm {
				m.took(r.Span().Seconds())
			}
		}
	}
	return t, nil
}

// creator returns what makes files below dir and, untimed, removes them.
func (a *application) creator(ctx context.Context, dir string) func(int) (crew.Round, error) {
	order := func(what string) func(int) string {
		return func(rank int) string {
			return fmt.Sprintf("%s %d %s", what, a.env.filesEach(), path.Join(dir, fmt.Sprintf("new.%d.", rank)))
		}
	}
	return func(int) (crew.Round, error) {
		r, err := a.crew.Do(ctx, order("create"))
		if err == nil {
			_, err = a.crew.Do(ctx, order("remove"))
		}
		return r, err
	}
}

// create is the rate at which files are made.
func create(ctx context.Context, e *Env) (*result.Result, error) {
	t, err := e.createRates(ctx, e.Peers)
	if err != nil {
		return nil, err
	}
	res := &result.Result{}
	table := result.Table{Title: fmt.Sprintf("%.0f empty files, an equal part by each rank", t.files), Rows: "side",
		Columns: []result.Column{{Name: "creates", Unit: "1/s"}, {Name: "each", Unit: result.Duration}}}
	add := func(name string, s stats.Sample) {
		each := make(stats.Sample, len(s))
		for i, v := range s {
			each[i] = v / float64(e.filesEach())
		}
		table.Add(name, result.Number(result.Per(t.files, s)), result.Number(result.Middle(each)))
	}
	add("nvmecr", t.ours)
	beside := func(name, why string, s stats.Sample) error {
		ratios, err := stats.Ratios(s, t.ours)
		if err != nil {
			return err
		}
		add(name, s)
		res.Comparisons = append(res.Comparisons, result.Comparison{What: "file creates", Peer: name, Ratio: result.Interval(ratios),
			Ours: result.Per(t.files, t.ours), Theirs: result.Per(t.files, s), Unit: "creates/s", Why: why, Ceiling: name == rawCreates})
		return nil
	}
	if len(t.raw) > 0 {
		if err := beside(rawCreates, "a create is durable when it returns: one log page, one round trip", t.raw); err != nil {
			return nil, err
		}
	}
	for _, p := range e.Peers {
		if err := beside(p.Name, "its creates are in memory only until somebody calls fsync; ours are durable, one round trip each", t.peers[p.Name]); err != nil {
			return nil, err
		}
	}
	res.Tables = append(res.Tables, table)
	rate := result.Per(t.files, t.ours).Value
	res.Claims = append(res.Claims, paper.CreatesLess.Beside("%.0f creates/s in all", rate), paper.CreatesMore.Beside("a private namespace has no directory to share"))
	return res, nil
}
