package bench

import (
	"context"
	"fmt"

	"nvmecr/bench/result"
)

// sizes measures the time of checkpoints of several sizes by all ranks, as the paper's figure 7(c)
// does.
func (e *Env) sizes(ctx context.Context, res *result.Result, sides []*side) error {
	few := *e
	few.Rounds = max(3, e.Rounds/2)
	plot := result.Plot{Title: fmt.Sprintf("Time of a checkpoint of %s", rankCount(sides[0].group.Size())),
		X: result.Axis{Name: "each rank", Unit: result.Size, Log: true}, Y: result.Axis{Name: "open to close, fsync included", Unit: result.Duration}}
	table := result.Table{Title: plot.Title, Rows: "each rank"}
	for _, s := range sides {
		table.Columns = append(table.Columns, result.Column{Name: s.name, Unit: result.Duration})
	}
	for size := max(whole(e.Size/16, e.Transfer), e.Transfer); size <= e.Size; size *= 2 {
		took, err := few.inTurns(ctx, "checkpoints of "+size.String(), work{size: size, transfer: e.Transfer}, false, sides...)
		if err != nil {
			return err
		}
		var cells []result.Cell
		for _, s := range sides {
			seconds := result.Middle(spans(took[s].write))
			plot.Add(s.name, float64(size), seconds)
			cells = append(cells, result.Number(seconds))
		}
		table.Add(size.String(), cells...)
	}
	res.Tables, res.Plots = append(res.Tables, table), append(res.Plots, plot)
	return nil
}
