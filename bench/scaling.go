package bench

import (
	"context"
	"fmt"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// scaling lets more and more of the ranks take part: each with as much as ever
// (weak), and all together with as much as ever (strong).
func (e *Env) scaling(ctx context.Context, res *result.Result, app, raw *side) error {
	few := *e
	few.Rounds = max(3, e.Rounds/2)
	for _, kind := range []struct {
		name string
		size func(ranks int) nvmf.Bytes
	}{
		{"Weak scaling", func(int) nvmf.Bytes { return e.Size }},
		{"Strong scaling", func(n int) nvmf.Bytes {
			return max(e.Transfer, whole(e.Size/nvmf.Bytes(n), e.Transfer))
		}},
	} {
		plot := result.Plot{Title: kind.name + ": efficiency", X: result.Axis{Name: "ranks", Unit: result.Whole, Log: true},
			Y: result.Axis{Name: "application's bandwidth over the raw queues'", Unit: result.Ratio}}
		table := result.Table{Title: kind.name, Rows: "ranks", Columns: []result.Column{
			{Name: "each", Unit: result.Size}, {Name: "nvmecr", Unit: "MiB/s"}, {Name: "raw NVMe/TCP", Unit: "MiB/s"}, {Name: "efficiency", Unit: result.Ratio},
		}}
		for _, n := range powers(app.crew.Size()) {
			w := work{size: kind.size(n), transfer: e.Transfer, ranks: n}
			took, err := few.inTurns(ctx, fmt.Sprintf("%s, %s", kind.name, rankCount(n)), w, false, app, raw)
			if err != nil {
				return err
			}
			total := float64(n) * float64(w.size) / float64(nvmf.MiB)
			ratios, err := stats.Ratios(spans(took[raw].write), spans(took[app].write))
			if err != nil {
				return err
			}
			table.Add(fmt.Sprint(n), result.Count(float64(w.size)), result.Number(result.Per(total, spans(took[app].write))),
				result.Number(result.Per(total, spans(took[raw].write))), result.Number(result.Middle(ratios)))
			plot.Add("nvmecr", float64(n), result.Middle(ratios))
		}
		plot.Marks = []result.Mark{{Name: "the paper's at 448 ranks", Y: paper.CheckpointEfficacy.Value}}
		res.Tables = append(res.Tables, table)
		res.Plots = append(res.Plots, plot)
	}
	return nil
}

// powers returns the powers of two up to n, and n.
func powers(n int) []int {
	var p []int
	for i := 1; i < n; i *= 2 {
		p = append(p, i)
	}
	return append(p, n)
}

// An appRun is an application that computes and takes checkpoints in turns.
type appRun struct {
	compute, inCheckpoints float64 // seconds
	mib                    float64 // of a checkpoint, all ranks
	rates                  stats.Sample
}

// progress is the share of its time in which it computes (the paper's progress
// rate).
func (r *appRun) progress() float64 { return r.compute / (r.compute + r.inCheckpoints) }

// applicationRun takes Count checkpoints, each after a compute phase, on the
// side that which names.
func (e *Env) applicationRun(ctx context.Context, which func(k int) *side, phase float64) (*appRun, error) {
	first := which(0)
	r := &appRun{mib: float64(first.crew.Size()) * float64(e.Size) / float64(nvmf.MiB)}
	for k := range e.Count {
		s := which(k)
		e.progress(fmt.Sprintf("an application on %s", first.name), k, e.Count)
		c, err := s.crew.Say(ctx, fmt.Sprintf("compute %d", int64(phase*1e9)))
		if err != nil {
			return nil, err
		}
		w, err := s.write(ctx, work{size: e.Size, transfer: e.Transfer}, k)
		if err != nil {
			return nil, err
		}
		r.compute += c.Span().Seconds()
		r.inCheckpoints += w.Span().Seconds()
		r.rates = append(r.rates, r.mib/w.Span().Seconds())
	}
	return r, nil
}

// application adds the run of an application on each side that can compute,
// with phases as long as the flag says, or 10 times as long as our checkpoint.
func (e *Env) application(ctx context.Context, res *result.Result, sides []*side, took map[*side]*taken) error {
	phase := e.Compute.Seconds()
	if phase == 0 {
		phase = 10 * spans(took[sides[0]].write).Median()
	}
	t := result.Table{Title: fmt.Sprintf("An application of %s: %d compute phases of %s, a checkpoint of %s of each rank after every one",
		rankCount(sides[0].crew.Size()), e.Count, result.Duration.Full(phase), e.Size), Rows: "checkpoints on", Columns: []result.Column{
		{Name: "in checkpoints", Unit: result.Duration}, {Name: "bandwidth", Unit: "MiB/s"}, {Name: "efficiency", Unit: result.Ratio},
		{Name: "progress rate", Unit: result.Ratio},
	}}
	hardware := 0.0
	for _, s := range sides {
		if s.name == rawName {
			total := float64(s.crew.Size()) * float64(e.Size) / float64(nvmf.MiB)
			hardware = result.Per(total, spans(took[s].write)).Value
		}
	}
	for _, s := range sides {
		if s.crew != sides[0].crew {
			continue // it is no application
		}
		r, err := e.applicationRun(ctx, func(int) *side { return s }, phase)
		if err != nil {
			return err
		}
		efficiency := result.None()
		if hardware > 0 {
			efficiency = result.Count(r.rates.Median() / hardware)
			if s == sides[0] {
				res.Claims = append(res.Claims, paper.CheckpointEfficacy.Beside("%.2f of the raw queues' bandwidth at %s", r.rates.Median()/hardware, rankCount(s.crew.Size())))
			}
		}
		t.Add(s.name, result.Count(r.inCheckpoints), result.Number(result.Middle(r.rates)), efficiency, result.Count(r.progress()))
	}
	t.Note = "Efficiency is the application's bandwidth over the raw queues' median; progress rate is the share of its time in which it computes."
	res.Tables = append(res.Tables, t)
	return nil
}
