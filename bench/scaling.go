package bench

import (
	"context"
	"fmt"
	"slices"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// A growth defines how the work of a rank depends on the number of ranks.
type growth struct {
	name string
	size func(ranks int) nvmf.Bytes
}

// growths returns weak scaling, with the same amount for each rank, and strong scaling,
// with the same amount for all ranks together.
func (e *Env) growths() []growth {
	return []growth{
		{"Weak scaling", func(int) nvmf.Bytes { return e.Size }},
		{"Strong scaling", func(n int) nvmf.Bytes {
			return max(e.Transfer, whole(e.Size/nvmf.Bytes(n), e.Transfer))
		}},
	}
}

// scaling measures growing numbers of ranks. The first side is the application.
func (e *Env) scaling(ctx context.Context, res *result.Result, sides []*side) error {
	few := *e
	few.Rounds = max(3, e.Rounds/2)
	for i, kind := range e.growths() {
		c := newScalingChart(kind.name, "checkpoints", paper.CheckpointEfficacy)
		for _, n := range powers(sides[0].group.Size()) {
			w := work{size: kind.size(n), transfer: e.Transfer, ranks: n}
			took, err := few.inTurns(ctx, fmt.Sprintf("%s, %s", kind.name, rankCount(n)), w, false, sides...)
			if err != nil {
				return err
			}
			seconds := make(map[string]stats.Sample)
			for _, s := range sides {
				seconds[s.name] = spans(took[s].write)
			}
			if err := c.add(w, names(sides), seconds); err != nil {
				return err
			}
		}
		c.finish(res, i == 0)
	}
	return nil
}

func names(sides []*side) []string {
	all := make([]string, len(sides))
	for i, s := range sides {
		all[i] = s.name
	}
	return all
}

// A scalingChart corresponds to the paper's figure 1 and a part of figure 9. It shows
// the bandwidth, and its share of the raw queues' bandwidth, for growing numbers of
// ranks.
type scalingChart struct {
	bandwidth, efficiency result.Plot
	table                 result.Table
}

func newScalingChart(kind, of string, there paper.Number) *scalingChart {
	ranks := result.Axis{Name: "ranks", Unit: result.Whole, Log: true}
	return &scalingChart{
		bandwidth: result.Plot{Title: kind + ": bandwidth of " + of, X: ranks, Y: result.Axis{Name: "all ranks", Unit: "MiB/s"}},
		efficiency: result.Plot{Title: kind + ": efficiency of " + of, X: ranks, Y: result.Axis{Name: "share of the raw queues' bandwidth", Unit: result.Ratio},
			Marks:  []result.Mark{{Name: "the paper's at 448 ranks", Y: there.Value}},
			Series: []result.Series{{Name: "nvmecr"}}}, // the first series, even if its first point is void
		table: result.Table{Title: kind + ", " + of, Rows: "ranks, side", Columns: []result.Column{
			{Name: "each", Unit: result.Size}, {Name: "bandwidth", Unit: "MiB/s"}, {Name: "efficiency", Unit: result.Ratio}},
			Note: "Efficiency is the share of the raw queues' bandwidth. They are nvmecr's ceiling: what is above 1 there is void. Peers whose files are memory of the ranks' own host may be above it."},
	}
}

// add adds the times of the named sides for w. The first one is the application.
func (c *scalingChart) add(w work, names []string, seconds map[string]stats.Sample) error {
	total := float64(w.ranks) * float64(w.size) / float64(nvmf.MiB)
	for i, name := range names {
		rate := result.Per(total, seconds[name])
		c.bandwidth.Add(name, float64(w.ranks), rate)
		efficiency := result.None()
		if name != rawName && len(seconds[rawName]) > 0 {
			ratios, err := stats.Ratios(seconds[rawName], seconds[name])
			if err != nil {
				return err
			}
			share := result.Middle(ratios)
			efficiency = efficiencyCell(share, i == 0)
			if efficiency.Text == "" {
				c.efficiency.Add(name, float64(w.ranks), share)
			}
		}
		c.table.Add(fmt.Sprintf("%d, %s", w.ranks, name), result.Count(float64(w.size)), result.Number(rate), efficiency)
	}
	return nil
}

// efficiencyCell returns a share of the raw queues' bandwidth. The raw queues are a
// ceiling for nvmecr's sides. If a share exceeds 1 by more than the noise, the raw
// queues were disturbed.
func efficiencyCell(share result.Measure, ours bool) result.Cell {
	if ours && share.Low > 1 {
		return result.Text("void")
	}
	return result.Number(share)
}

// finish adds the chart to a result, with the bandwidths if bandwidth is set.
func (c *scalingChart) finish(res *result.Result, bandwidth bool) {
	res.Tables = append(res.Tables, c.table)
	if bandwidth {
		res.Plots = append(res.Plots, c.bandwidth)
	}
	if slices.ContainsFunc(c.efficiency.Series, func(s result.Series) bool { return len(s.Points) > 0 }) {
		res.Plots = append(res.Plots, c.efficiency)
	}
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
	mib                    float64 // of a checkpoint of all ranks
	rates                  stats.Sample
}

// progress returns the share of the time in which the application computes. The paper
// calls it progress rate.
func (r *appRun) progress() float64 { return r.compute / (r.compute + r.inCheckpoints) }

// shares returns the bandwidths as shares of another bandwidth.
func (r *appRun) shares(of float64) stats.Sample {
	s := make(stats.Sample, len(r.rates))
	for i, rate := range r.rates {
		s[i] = rate / of
	}
	return s
}

// applicationRun takes Count checkpoints, each after a compute phase. which returns the
// side of the k-th checkpoint.
func (e *Env) applicationRun(ctx context.Context, which func(k int) *side, phase float64) (*appRun, error) {
	first := which(0)
	r := &appRun{mib: float64(first.group.Size()) * float64(e.Size) / float64(nvmf.MiB)}
	for k := range e.Count {
		s := which(k)
		e.progress(fmt.Sprintf("an application on %s", first.name), k, e.Count)
		c, err := s.group.DoAll(ctx, fmt.Sprintf("compute %d", int64(phase*1e9)))
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

// application adds the run of an application on each side that can compute. Its phases
// have the length of the flag, or 10 times the length of nvmecr's checkpoint.
func (e *Env) application(ctx context.Context, res *result.Result, sides []*side, took map[*side]*taken) error {
	phase := e.Compute.Seconds()
	if phase == 0 {
		phase = 10 * spans(took[sides[0]].write).Median()
	}
	t := result.Table{Title: fmt.Sprintf("An application of %s: %d compute phases of %s, a checkpoint of %s of each rank after every one",
		rankCount(sides[0].group.Size()), e.Count, result.Duration.Full(phase), e.Size), Rows: "checkpoints on", Columns: []result.Column{
		{Name: "in checkpoints", Unit: result.Duration}, {Name: "bandwidth", Unit: "MiB/s"}, {Name: "efficiency", Unit: result.Ratio},
		{Name: "progress rate", Unit: result.Ratio},
	}}
	hardware := 0.0
	for _, s := range sides {
		if s.name == rawName {
			total := float64(s.group.Size()) * float64(e.Size) / float64(nvmf.MiB)
			hardware = result.Per(total, spans(took[s].write)).Value
		}
	}
	for _, s := range sides {
		if s.name == rawName || s.name == socketsName {
			continue // this side is not an application
		}
		r, err := e.applicationRun(ctx, func(int) *side { return s }, phase)
		if err != nil {
			return err
		}
		efficiency := result.None()
		if hardware > 0 {
			share := result.Middle(r.shares(hardware))
			efficiency = efficiencyCell(share, s == sides[0])
			if s == sides[0] && efficiency.Text == "" {
				res.Claims = append(res.Claims, paper.CheckpointEfficacy.Beside("%.2f of the raw queues' bandwidth at %s", share.Value, rankCount(s.group.Size())))
			}
		}
		t.Add(s.name, result.Count(r.inCheckpoints), result.Number(result.Middle(r.rates)), efficiency, result.Count(r.progress()))
	}
	t.Note = "Efficiency is the application's bandwidth over the raw queues' median; progress rate is the share of its time in which it computes."
	res.Tables = append(res.Tables, t)
	return nil
}
