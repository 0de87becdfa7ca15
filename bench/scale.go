package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nvmecr/bench/model"
	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// maxRanks is the largest number of ranks in the model.
const maxRanks = 1_000_000

// scale measures the costs of one rank and one target on this machine. From them it
// computes the costs of jobs of up to a million ranks on a given fabric.
func scale(ctx context.Context, e *Env) (*result.Result, error) {
	fabric := e.Fabric
	if fabric.Target == 0 {
		fabric = model.PaperFabric
	}
	res := &result.Result{}
	res.Parameter("fabric", "%s", fabric.Name)
	res.Parameter("a rank's checkpoint", "%s, the paper's weak scaling", result.Size.Full(paperCheckpoint))
	m := measuring{env: e, res: res}
	costs, err := m.costs(ctx)
	if err != nil {
		return nil, err
	}
	e.progress("computing", 11, 12)
	predictions, err := predict(ctx, fabric, costs, maxRanks)
	if err != nil {
		return nil, err
	}
	res.Tables = append([]result.Table{startTable(predictions), loadTable(predictions), treeTable(fabric, costs)}, res.Tables...)
	res.Plots = []result.Plot{startPlot(predictions), checkpointPlot(predictions)}
	last := predictions[len(predictions)-1]
	res.Finding = fmt.Sprintf("A million ranks on %s targets would have mounted %s after MPI_Init the first time and %s after it later; %d ranks take %s. "+
		"Only MPI's collectives grow with the job, by %d steps; everything else happens on one target, which never has more than %d ranks.",
		result.Whole.Format(float64(last.Targets)), seconds(last.Start), seconds(last.Restart), predictions[2].Ranks, seconds(predictions[2].Restart), last.Depth, fabric.RanksPerTarget)
	res.Claims = []result.Claim{
		paper.ProcessesPerSSDMost.Beside("%d, by which the number of targets is chosen", fabric.RanksPerTarget),
		paper.CheckpointEfficacy.Beside("%.3f, by which the model multiplies the hardware's bandwidth; \"Measured here\" says whether that was measured", costs.Efficiency),
	}
	res.Note("The upper tables are computed, the lower ones measured on this machine over NVMe/TCP on loopback. The model takes the ranks of one target to be served by one of its cores, one after another, and targets to be independent; it has no contention of the network but the bandwidths stated.")
	return res, nil
}

// prediction is a prediction of the model, with the loads of other placements.
type prediction struct {
	model.Prediction
	slowest map[string]float64 // load of the fullest target divided by the mean, by placement
}

func predict(ctx context.Context, f model.Fabric, c model.Costs, limit int) ([]prediction, error) {
	var all []prediction
	for n := 1; n <= limit; n *= 10 {
		o := prediction{model.Job{Ranks: n, Size: paperCheckpoint}.Predict(f, c), make(map[string]float64)}
		for _, p := range model.Placements {
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			o.slowest[p.Name] = model.Slowest(p.Place(n, o.Targets, paperCheckpoint, 1))
		}
		all = append(all, o)
	}
	return all, nil
}

// checkpoint returns the time of a checkpoint with a placement. The model itself uses
// the loads of round robin.
func (o *prediction) checkpoint(placement string) float64 {
	return o.Checkpoint.Seconds() * o.slowest[placement] / o.slowest["round robin"]
}

func startTable(predictions []prediction) result.Table {
	t := result.Table{Title: "The start of a job, computed", Rows: "ranks", Columns: []result.Column{
		{Name: "targets", Unit: result.Whole}, {Name: "ranks on the fullest", Unit: result.Whole},
		{Name: "MPI messages", Unit: result.Whole}, {Name: "steps of MPI", Unit: result.Whole},
		{Name: "NVMe/TCP PDUs at one target", Unit: result.Whole},
		{Name: "mounted, first run", Unit: result.Duration}, {Name: "mounted, later runs", Unit: result.Duration},
		{Name: "balancer, all ranks", Unit: result.Duration}, {Name: "table of a target", Unit: result.Size},
	}, Note: "Each rank computes its own place only; the balancer's column is all of them on one core. A rank holds 32 bytes of the mapping, and a number for each rank on its target while MPI_COMM_CR is made."}
	for _, o := range predictions {
		t.Add(result.Whole.Format(float64(o.Ranks)), result.Count(float64(o.Targets)), result.Count(float64(o.Fullest)),
			result.Count(float64(o.Collectives)), result.Count(float64(o.Depth)), result.Count(float64(o.TargetMessages)),
			result.Count(o.Start.Seconds()), result.Count(o.Restart.Seconds()), result.Count(o.Balance.Seconds()), result.Count(float64(o.TableBytes)))
	}
	return t
}

func loadTable(predictions []prediction) result.Table {
	t := result.Table{Title: "A checkpoint, computed", Rows: "ranks", Columns: []result.Column{{Name: "data", Unit: result.Size}, {Name: "limited by"}},
		Note: "Behind each time: the fullest target's load over the mean."}
	for _, p := range model.Placements {
		t.Columns = append(t.Columns, result.Column{Name: p.Name})
	}
	for i := range predictions {
		o := &predictions[i]
		cells := []result.Cell{result.Count(float64(o.Ranks) * paperCheckpoint), result.Text("%s", o.Limit)}
		for _, p := range model.Placements {
			cells = append(cells, result.Text("%s, %.2f", result.Duration.Format(o.checkpoint(p.Name)), o.slowest[p.Name]))
		}
		t.Add(result.Whole.Format(float64(o.Ranks)), cells...)
	}
	return t
}

func startPlot(predictions []prediction) result.Plot {
	p := result.Plot{Title: "From MPI_Init to the last mount, computed", X: result.Axis{Name: "ranks", Log: true, Unit: result.Whole}, Y: result.Axis{Name: "time", Unit: result.Duration}}
	for _, o := range predictions {
		p.Add("first run", float64(o.Ranks), result.Exactly(o.Start.Seconds()))
		p.Add("later runs", float64(o.Ranks), result.Exactly(o.Restart.Seconds()))
	}
	return p
}

func checkpointPlot(predictions []prediction) result.Plot {
	p := result.Plot{Title: "A checkpoint of " + result.Size.Full(paperCheckpoint) + " a rank, computed",
		X: result.Axis{Name: "ranks", Log: true, Unit: result.Whole}, Y: result.Axis{Name: "time of the slowest rank", Unit: result.Duration}}
	for i := range predictions {
		for _, name := range []string{"round robin", "hash ranges", "hash ring"} {
			p.Add(name, float64(predictions[i].Ranks), result.Exactly(predictions[i].checkpoint(name)))
		}
	}
	return p
}

func seconds(d time.Duration) string { return result.Duration.Full(d.Seconds()) }

// measuring collects the values that can be measured on one machine.
type measuring struct {
	env   *Env
	res   *result.Result
	table result.Table
}

func (m *measuring) costs(ctx context.Context) (c model.Costs, err error) {
	m.table = result.Table{Title: "Measured here", Rows: "what", Columns: []result.Column{{Name: "measured"}}}
	for i, part := range []struct {
		what    string
		measure func(context.Context, *model.Costs) error
	}{
		{"the balancer", m.balancer}, {"partition tables", m.tables}, {"messages of a start", m.messages},
		{"starts", m.starts}, {"checkpoints", m.efficiency}, {"the index of a tree", m.index},
	} {
		m.env.progress(part.what, 2*i, 12)
		if err := part.measure(ctx, &c); err != nil {
			return c, fmt.Errorf("%s: %w", part.what, err)
		}
	}
	m.res.Tables = append(m.res.Tables, m.table)
	return c, nil
}

// add adds a row to the table of measured values.
func (m *measuring) add(what string, unit result.Unit, v result.Measure) {
	m.table.Add(what, result.Cell{Measure: v, Unit: unit})
}

// efficiency measures the application's share of the raw bandwidth. The model assumes the same
// share of the hardware's bandwidth.
func (m *measuring) efficiency(ctx context.Context, c *model.Costs) (err error) {
	e := *m.env
	e.Peers, e.Rounds, e.Warm, e.Progress = nil, min(e.Rounds, 5), min(e.Warm, 2), nil
	size := min(e.Size, 64*nvmf.MiB)
	b, err := e.testbed(ctx, size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, raw, err := b.besideRaw(ctx)
	if err != nil {
		return err
	}
	if raw == nil {
		c.Efficiency = paper.CheckpointEfficacy.Value
		m.res.NotMeasured("bandwidth beside raw", "%s; the model takes the paper's %s", b.why, paper.CheckpointEfficacy.Said)
		return nil
	}
	ours := a.side("nvmecr")
	took, err := e.inTurns(ctx, "", work{size: size, transfer: min(e.Transfer, size)}, false, ours, raw)
	if err != nil {
		return err
	}
	ratios, err := stats.Ratios(spans(took[raw].write), spans(took[ours].write))
	if err != nil {
		return err
	}
	share := result.Interval(ratios)
	c.Efficiency = share.Value
	if share.Value > 1 { // the model must not continue with such a share
		c.Efficiency = paper.CheckpointEfficacy.Value
		m.res.NotMeasured("bandwidth beside raw", "the raw queues, which are the ceiling, were disturbed: the application had %s of theirs; the model takes the paper's %s",
			result.Ratio.Full(share.Value), paper.CheckpointEfficacy.Said)
		return nil
	}
	m.add(fmt.Sprintf("checkpoint bandwidth of %s, of raw", rankCount(a.group.Size())), result.Ratio, share)
	return nil
}
