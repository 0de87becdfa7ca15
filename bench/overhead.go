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

// overhead compares a store on a local device with the same store over NVMe/TCP.
func overhead(ctx context.Context, e *Env) (res *result.Result, err error) {
	if e.remote() {
		return nil, errors.New("a local device is one of this host's: leave --launch out, and do not start it through mpirun or srun")
	}
	one := e.with(1) // a local device can have one owner only
	b, err := one.testbed(ctx, one.Size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	remote, err := b.application(ctx)
	if err != nil {
		return nil, err
	}
	local, err := one.localStore(ctx)
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, local)
	res = &result.Result{}
	t := result.Table{Title: fmt.Sprintf("1 rank, pieces of %s, fsync and close included", e.Transfer), Rows: "checkpoint", Columns: []result.Column{
		{Name: "local", Unit: result.Duration}, {Name: "over NVMe/TCP", Unit: result.Duration}, {Name: "overhead", Unit: result.Percent}}}
	plot := result.Plot{Title: "Overhead of the network", X: result.Axis{Name: "checkpoint of a rank", Unit: result.Size, Log: true}, Y: result.Axis{Name: "time over that of a local device, less 1", Unit: result.Percent}}
	var last result.Measure
	near, far := local.side("local"), remote.side("over NVMe/TCP")
	for size := max(e.Size/8, e.Transfer); size <= e.Size; size *= 2 {
		took, err := one.inTurns(ctx, "checkpoints of "+size.String(), work{size: size, transfer: e.Transfer}, false, near, far)
		if err != nil {
			return nil, err
		}
		l, r := spans(took[near].write), spans(took[far].write)
		ratios, err := stats.Ratios(r, l)
		if err != nil {
			return nil, err
		}
		for i := range ratios {
			ratios[i]--
		}
		last = result.Middle(ratios)
		t.Add(size.String(), result.Number(result.Middle(l)), result.Number(result.Middle(r)), result.Number(last))
		plot.Add("nvmecr", float64(size), last)
	}
	res.Finding = fmt.Sprintf("A checkpoint of %s takes one rank %s longer over NVMe/TCP than on a local file in memory, which is faster than any SSD.", e.Size, result.Percent.Format(last.Value))
	if last.Value < 0 {
		res.Finding = fmt.Sprintf("A checkpoint of %s takes one rank %s less time over NVMe/TCP than on a local file in memory.", e.Size, result.Percent.Format(-last.Value))
	}
	res.Tables, res.Plots = append(res.Tables, t), append(res.Plots, plot)
	res.Claims = append(res.Claims, paper.RemoteOverhead.Beside("see the table; the local device is a file in memory, as fast as a copy, not an SSD"))
	res.Note("Local is a file of a file system in memory, which takes the data with one copy; an SSD takes longer than that, and the share of the network is smaller.")
	return res, nil
}

// localStore starts the application on a file in memory.
func (e *Env) localStore(ctx context.Context) (*application, error) {
	file, err := e.memoryFile(e.namespace(e.Size))
	if err != nil {
		return nil, err
	}
	return e.startApplication(ctx, []nvmf.TransportID{{Transport: nvmf.File, Address: file}})
}
