package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"nvmecr/bench/model"
	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
)

// The configuration of the paper's measurement of imbalance: its storage nodes, its process counts
// (full nodes of 28 cores), and the size of a process's checkpoint in the weak scaling (700 GB in
// 10 checkpoints of 448 processes).
const (
	paperTargets    = 8
	paperCheckpoint = 156_250_000
)

// imbalance compares how evenly placements load the targets. It computes the loads and writes
// nothing.
func imbalance(ctx context.Context, e *Env) (*result.Result, error) {
	trials := 101
	if e.Quick {
		trials = 21
	}
	res := &result.Result{}
	res.Parameter("targets", "%d", paperTargets)
	res.Parameter("a rank's file", "%s", result.Size.Full(paperCheckpoint))
	res.Parameter("trials", "%d sets of file names, where names decide", trials)
	placements := append(slices.Clone(model.Placements), model.Plan)
	columns := make([]result.Column, len(placements))
	for i, p := range placements {
		columns[i] = result.Column{Name: p.Name, Unit: result.Ratio}
		res.Note("%s: %s.", strings.ToUpper(p.Name[:1])+p.Name[1:], p.About)
	}
	spread := result.Table{Title: "Coefficient of variation of the targets' loads", Rows: "ranks", Columns: columns,
		Note: "0: all targets hold the same."}
	slowest := result.Table{Title: "Load of the fullest target, of the mean", Rows: "ranks", Columns: columns,
		Note: "Where the targets limit it, a checkpoint takes this many times longer than with equal loads."}
	spreadPlot := result.Plot{Title: spread.Title, X: result.Axis{Name: "ranks", Log: true, Unit: result.Whole}, Y: result.Axis{Name: "coefficient of variation"},
		Note: "Whiskers are quartiles over the sets of names."}
	slowestPlot := result.Plot{Title: slowest.Title, X: spreadPlot.X, Y: result.Axis{Name: "fullest / mean"}}

	ranks := []int{28, 56, 112, 224, 448, 1792, 7168, 28672}
	for i, n := range ranks {
		var cv, full []result.Cell
		for _, p := range placements {
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			c, f := imbalanceOf(p, n, trials)
			cv, full = append(cv, result.Number(c)), append(full, result.Number(f))
			spreadPlot.Add(p.Name, float64(n), c)
			slowestPlot.Add(p.Name, float64(n), f)
		}
		spread.Add(result.Whole.Format(float64(n)), cv...)
		slowest.Add(result.Whole.Format(float64(n)), full...)
		e.progress("placing files", i+1, len(ranks))
	}
	sharing, err := sharingTable(ranks, trials)
	if err != nil {
		return nil, err
	}
	res.Tables = []result.Table{spread, slowest, sharing}
	res.Plots = []result.Plot{spreadPlot, slowestPlot}
	imbalanceFinding(res, spread, slowest)
	return res, nil
}

// imbalanceOf returns the coefficient of variation of the loads, and the load of the
// fullest target, of a placement.
func imbalanceOf(p model.Placement, ranks, trials int) (variation, fullest result.Measure) {
	var cv, full stats.Sample
	if p.Name == model.Plan.Name {
		trials = 1 // the placement does not depend on names
	}
	for trial := range uint64(trials) {
		loads := p.Place(ranks, paperTargets, paperCheckpoint, trial)
		s := make(stats.Sample, len(loads))
		for i, l := range loads {
			s[i] = float64(l)
		}
		cv, full = append(cv, s.Variation()), append(full, model.Slowest(loads))
	}
	return result.Middle(cv), result.Middle(full)
}

// sharingTable returns a table of the number of ranks that lose their data together
// with their rack.
func sharingTable(ranks []int, trials int) (result.Table, error) {
	t := result.Table{Title: "Ranks with their data in their own rack", Rows: "ranks",
		Columns: []result.Column{{Name: "plan", Unit: result.Percent}, {Name: "round robin", Unit: result.Percent}, {Name: "hash ranges", Unit: result.Percent}},
		Note:    "Nodes of 28 ranks and the targets are in four racks. One failure takes a rank and its checkpoint. All targets are used: a job on one node alone has data in its own rack, too."}
	for _, n := range ranks {
		var plan, rank, hash stats.Sample
		for trial := range uint64(min(trials, 11)) {
			p, r, h, err := model.Sharing(n, paperTargets, trial)
			if err != nil {
				return t, err
			}
			plan, rank, hash = append(plan, p), append(rank, r), append(hash, h)
		}
		t.Add(result.Whole.Format(float64(n)), result.Number(result.Middle(plan)), result.Number(result.Middle(rank)), result.Number(result.Middle(hash)))
	}
	return t, nil
}

// imbalanceFinding adds the findings of the tables. The columns are those of model.Placements; the
// first row is 28 ranks, the fifth 448.
func imbalanceFinding(res *result.Result, spread, slowest result.Table) {
	const few, many = 0, 4
	value := func(t result.Table, row int, name string) float64 {
		for i, p := range model.Placements {
			if p.Name == name {
				return t.Lines[row].Cells[i].Value
			}
		}
		return 0
	}
	even, hash := value(spread, many, "round robin"), value(spread, many, "hash ranges")
	uneven := value(spread, few, "round robin")
	res.Finding = fmt.Sprintf("At 448 ranks on %d targets round robin varies by %s, hashing by %s: its fullest target makes a checkpoint %.2f times as long. "+
		"Striping varies by %s: it is as even at any number of ranks, and evener than round robin where the targets do not divide the ranks, as 28 on %d (%s).",
		paperTargets, result.Ratio.Format(even), result.Ratio.Format(hash), value(slowest, many, "hash ranges"),
		barely(value(spread, many, "striping")), paperTargets, result.Ratio.Format(uneven))
	res.Claims = []result.Claim{
		paper.ImbalanceOurs.Beside("%s at 56, 112, 224 and 448 ranks on %d targets; %s at 28, where loads differ by one rank",
			result.Ratio.Format(even), paperTargets, result.Ratio.Format(uneven)),
		{What: "hashing (GlusterFS)", Paper: "high at low concurrency (a plot)", Source: "section IV.C, Figure 7(b)",
			Here: fmt.Sprintf("%s at 28 ranks, %s at 448", result.Ratio.Format(value(spread, few, "hash ranges")), result.Ratio.Format(hash))},
		{What: "striping (OrangeFS)", Paper: "much better at low concurrency, noticeable at higher (a plot)", Source: "section IV.C, Figure 7(b)",
			Here: fmt.Sprintf("%s at 28 ranks, %s at 448: strips alone do not show what the paper saw", barely(value(spread, few, "striping")), barely(value(spread, many, "striping")))},
	}
	res.Note("Round robin is the balancer's own code. Striping is even because every rank talks to every target; round robin needs one connection for each rank. " +
		"The paper's OrangeFS varied more at more processes; where that came from its text does not say, and placement alone does not give it.")
}

// barely formats a ratio that may be too small for its digits.
func barely(v float64) string {
	if v > 0 && v < 0.001 {
		return "less than 0.001"
	}
	return result.Ratio.Format(v)
}
