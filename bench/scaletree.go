package bench

import (
	"context"
	"fmt"
	"time"

	"nvmecr/bench/model"
	"nvmecr/bench/result"
)

// treeSizes are the sizes of the jobs for which the costs of one tree are predicted:
// the size in the paper, and larger ones.
var treeSizes = []int{448, 10_000, maxRanks}

// treeFiles is the number of files of a rank.
const treeFiles = filesOfRank

// index measures the costs of the index of a job's tree.
func (m *measuring) index(ctx context.Context, costs *model.Costs) error {
	rates, err := m.env.indexRates(ctx)
	if err != nil {
		return err
	}
	c := &costs.Index
	for _, part := range []struct {
		load string
		to   *time.Duration
	}{{"open and close", &c.Open}, {"create and close", &c.Create}, {"publish of one range", &c.Publish}, {"hello and goodbye", &c.Hello}} {
		each := min(rates[part.load][1].each, rates[part.load][4].each)
		*part.to = time.Duration(each * 1e9)
		m.add("the index's answer: "+part.load, result.Duration, result.Exactly(each))
	}
	c.Trip = time.Duration(rates["nothing"][1].each * 1e9)
	m.add("an empty round trip to the index", result.Duration, result.Exactly(c.Trip.Seconds()))
	names := usualNames
	if m.env.Quick {
		names /= 10
	}
	heap, mount, err := useOfIndex(ctx, names, (*localIndex).files)
	if err != nil {
		return err
	}
	c.Name, c.MountName = heap/float64(names), time.Duration(mount*1e9/float64(names))
	m.add("memory of the index for a file with one range", result.Size, result.Exactly(c.Name))
	m.add("mounting the index's partition, for each file", result.Duration, result.Exactly(c.MountName.Seconds()))
	return nil
}

// treeTable shows the costs of one tree for jobs of these sizes.
func treeTable(f model.Fabric, costs model.Costs) result.Table {
	t := result.Table{Title: "One tree for the job, computed", Rows: "ranks", Columns: []result.Column{
		{Name: "all open and close to read", Unit: result.Duration}, {Name: "all create, publish, close", Unit: result.Duration},
		{Name: "of a checkpoint", Unit: result.Percent}, {Name: "restart, until all have read", Unit: result.Duration},
		{Name: "of it without the index", Unit: result.Duration}, {Name: fmt.Sprintf("memory of the index, %d files a rank", treeFiles), Unit: result.Size},
		{Name: "indexes it would take", Unit: result.Whole},
	}, Note: fmt.Sprintf("With --view=job, and the one index that there is today: it answers one request after another. The last column is how many processes would have to share the names "+
		"so that creating and closing takes no more than %s of a checkpoint; more than one cannot be had yet. --view=rank asks nobody.", result.Percent.Format(model.IndexShare))}
	for _, n := range treeSizes {
		o := model.Job{Ranks: n, Size: paperCheckpoint}.Predict(f, costs)
		p := o.Tree(costs.Index, treeFiles)
		t.Add(result.Whole.Format(float64(n)), result.Count(p.Open.Seconds()), result.Count(p.Create.Seconds()),
			result.Count(p.Create.Seconds()/o.Checkpoint.Seconds()), result.Count(p.Restart.Seconds()), result.Count(o.Restart.Seconds()),
			result.Count(p.Memory), result.Count(float64(p.Indexes)))
	}
	return t
}
