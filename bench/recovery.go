package bench

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// recovery writes checkpoints, ends the ranks, and times how new ones, of the
// next run, mount their partitions and read the checkpoints back.
func recovery(ctx context.Context, e *Env) (res *result.Result, err error) {
	res = &result.Result{}
	t, err := e.recover(ctx, res)
	if err != nil {
		return nil, err
	}
	total := float64(t.ranks) * float64(e.Size) / float64(nvmf.MiB)
	table := result.Table{
		Title: fmt.Sprintf("%s, %s each read in pieces of %s by new processes", rankCount(t.ranks), e.Size, e.Transfer),
		Rows:  "side", Columns: []result.Column{{Name: "read", Unit: "MiB/s"}, {Name: "before that, mount", Unit: result.Duration}},
	}
	table.Add("nvmecr", result.Number(result.Per(total, t.read)), result.Number(result.Middle(t.mount)))
	if len(t.raw) > 0 {
		table.Add("raw NVMe/TCP", result.Number(result.Per(total, t.raw)), result.None())
		ratios, err := stats.Ratios(t.raw, t.read)
		if err != nil {
			return nil, err
		}
		res.Comparisons = append(res.Comparisons, result.Comparison{
			What: fmt.Sprintf("read after a restart, %s, %s pieces", rankCount(t.ranks), e.Transfer), Peer: rawName,
			Ratio: result.Interval(ratios), Unit: "MiB/s", Ours: result.Per(total, t.read), Theirs: result.Per(total, t.raw),
			Why: reason(rawName, "read", false), Ceiling: true,
		})
	}
	res.Tables = append(res.Tables, table)
	res.Note("Nothing that is read is in the memory of the new processes; the raw side, too, reads what it wrote a round before.")
	return res, nil
}

// recovered is the seconds that rounds of a recovery took.
type recovered struct {
	ranks            int
	mount, read, raw stats.Sample
}

// recover runs the rounds on a bed of their own.
func (e *Env) recover(ctx context.Context, res *result.Result) (t recovered, err error) {
	b, err := e.bed(ctx, e.Size)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, raw, err := b.besideRaw(ctx)
	if err != nil {
		return t, err
	}
	if raw == nil {
		res.NotMeasured("raw NVMe/TCP", "%s", b.why)
	}
	return e.recoverRounds(ctx, "recovery", a, raw)
}

// recoverRounds writes, restarts the application, and reads; raw may be nil.
func (e *Env) recoverRounds(ctx context.Context, what string, a *application, raw *side) (t recovered, err error) {
	t.ranks = a.crew.Size()
	w := work{size: e.Size, transfer: e.Transfer}
	for round := range 1 + e.Rounds {
		e.progress(what, round, 1+e.Rounds)
		if _, err := a.side("nvmecr").write(ctx, w, round); err != nil {
			return t, err
		}
		if raw != nil {
			if _, err := raw.write(ctx, w, round); err != nil {
				return t, err
			}
		}
		if err := a.restart(ctx); err != nil {
			return t, err
		}
		sides := []*side{a.side("nvmecr")}
		if raw != nil {
			sides = append(sides, raw)
		}
		for i := range sides {
			s := sides[(i+round)%len(sides)]
			r, err := s.read(ctx, w, round)
			if err != nil {
				return t, err
			}
			switch {
			case round == 0: // warm-up
			case s == raw:
				t.raw = append(t.raw, r.Span().Seconds())
			default:
				t.read = append(t.read, r.Span().Seconds())
				t.mount = append(t.mount, a.mounted.Span().Seconds())
			}
		}
	}
	return t, nil
}
