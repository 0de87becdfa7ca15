package bench

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// recovery writes checkpoints, ends the ranks, and measures how the ranks of the next run mount
// their partitions and read the checkpoints.
func recovery(ctx context.Context, e *Env) (res *result.Result, err error) {
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
		res.NotMeasured("raw NVMe/TCP", "%s", b.why)
	}
	t, err := e.recoverRounds(ctx, "recovery", work{size: e.Size, transfer: e.Transfer}, a, raw)
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
			Why: reason(rawName, "read", nil), Ceiling: true,
		})
	}
	res.Tables = append(res.Tables, table)
	res.Note("Nothing that is read is in the memory of the new processes; the raw side, too, reads what it wrote a round before.")
	if e.Quick {
		return res, nil
	}
	peers, err := b.peers(ctx, a, res)
	if err != nil {
		return nil, err
	}
	return res, e.recoveryScaling(ctx, res, a, raw, peers)
}

// recovered has the seconds of the rounds of a recovery.
type recovered struct {
	ranks            int
	mount, read, raw stats.Sample
	peers            map[string]stats.Sample
}

// recoverRounds writes, restarts the application, and reads. raw may be nil. The peers
// are used by the processes of the application.
func (e *Env) recoverRounds(ctx context.Context, what string, w work, a *application, raw *side, peers ...*side) (t recovered, err error) {
	t.ranks, t.peers = a.group.Size(), make(map[string]stats.Sample)
	others := peers
	if raw != nil {
		others = append([]*side{raw}, peers...)
	}
	for round := range 1 + e.Rounds {
		e.progress(what, round, 1+e.Rounds)
		for _, s := range append([]*side{a.side("nvmecr")}, others...) {
			if _, err := s.write(ctx, w, round); err != nil {
				return t, err
			}
		}
		if err := a.restart(ctx); err != nil {
			return t, err
		}
		for _, p := range peers {
			p.group = a.group
		}
		sides := append([]*side{a.side("nvmecr")}, others...)
		for i := range sides {
			s := sides[(i+round)%len(sides)]
			r, err := s.read(ctx, w, round)
			if err != nil {
				return t, err
			}
			seconds := r.Span().Seconds()
			switch {
			case round == 0: // warm-up
			case s == raw:
				t.raw = append(t.raw, seconds)
			case s == sides[0]:
				t.read = append(t.read, seconds)
				t.mount = append(t.mount, a.mounted.Span().Seconds())
			default:
				t.peers[s.name] = append(t.peers[s.name], seconds)
			}
		}
	}
	return t, nil
}

// recoveryScaling has growing numbers of ranks write, and read after a restart.
func (e *Env) recoveryScaling(ctx context.Context, res *result.Result, a *application, raw *side, peers []*side) error {
	few := *e
	few.Rounds = max(3, e.Rounds/2)
	for _, kind := range e.growths() {
		c := newScalingChart(kind.name, "recovery", paper.RecoveryEfficacy)
		for _, n := range powers(a.group.Size()) {
			w := work{size: kind.size(n), transfer: e.Transfer, ranks: n}
			t, err := few.recoverRounds(ctx, fmt.Sprintf("%s of recovery, %s", kind.name, rankCount(n)), w, a, raw, peers...)
			if err != nil {
				return err
			}
			seconds, order := t.peers, []string{"nvmecr"}
			seconds["nvmecr"] = t.read
			if raw != nil {
				seconds[rawName] = t.raw
				order = append(order, rawName)
			}
			if err := c.add(w, append(order, names(peers)...), seconds); err != nil {
				return err
			}
		}
		c.finish(res, false)
	}
	return nil
}
