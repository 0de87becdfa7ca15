package bench

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/bench/result"
	"nvmecr/nvmf"
)

// rawPieces has the transfer sizes of the raw experiment, and the goal for each: a
// share of the rate of the sockets baseline.
var rawPieces = []struct {
	transfer nvmf.Bytes
	calls    int
	limit    float64
}{{nvmf.MiB, 0, 0.90}, {32 * nvmf.KiB, 2048, 0.75}, {4 * nvmf.KiB, 4096, 0}}

// rawTook has the times of both sides with one transfer size.
type rawTook struct {
	transfer     nvmf.Bytes
	limit        float64
	mib          float64 // in a round, of all ranks
	raw, sockets *taken
}

// rawBesideSockets compares queues with the sockets baseline.
func (e *Env) rawBesideSockets(ctx context.Context) (all []rawTook, err error) {
	b, err := e.testbed(ctx, e.Size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	raw, err := b.rawSide(ctx)
	if err != nil {
		return nil, err
	}
	sockets, err := b.socketSide(ctx, e.Size)
	if err != nil {
		return nil, err
	}
	if raw == nil || sockets == nil {
		return nil, errors.New("raw queues and the sockets baseline are compared on one machine: leave --target, --launch out")
	}
	for _, p := range rawPieces {
		w := work{size: e.Size, transfer: p.transfer}
		if p.calls > 0 {
			w.size = min(e.Size, nvmf.Bytes(p.calls)*p.transfer)
		}
		took, err := e.inTurns(ctx, fmt.Sprintf("raw, %s, %s pieces", rankCount(e.Ranks), p.transfer), w, true, raw, sockets)
		if err != nil {
			return nil, err
		}
		all = append(all, rawTook{p.transfer, p.limit, float64(e.Ranks) * float64(w.size) / float64(nvmf.MiB), took[raw], took[sockets]})
	}
	return all, nil
}

// rawExperiment compares the raw side with its ceiling.
func rawExperiment(ctx context.Context, e *Env) (*result.Result, error) {
	res := &result.Result{}
	for _, ranks := range []int{1, e.Ranks} {
		all, err := e.with(ranks).rawBesideSockets(ctx)
		if err != nil {
			return nil, err
		}
		for _, t := range all {
			table := result.Table{Title: fmt.Sprintf("%s, one piece of %s in flight each", rankCount(ranks), t.transfer), Rows: "side", Columns: []result.Column{
				{Name: "write", Unit: "MiB/s"}, {Name: "median", Unit: result.Duration}, {Name: "read", Unit: "MiB/s"}, {Name: "median", Unit: result.Duration},
			}}
			for _, s := range []struct {
				name string
				*taken
			}{{"raw NVMe/TCP", t.raw}, {"sockets baseline", t.sockets}} {
				table.Add(s.name, result.Number(result.Per(t.mib, spans(s.write))), result.Number(result.Middle(medians(s.write))),
					result.Number(result.Per(t.mib, spans(s.read))), result.Number(result.Middle(medians(s.read))))
			}
			res.Tables = append(res.Tables, table)
			if err := compare(res, ranks, t.mib, t.transfer, "sockets baseline", t.raw, t.sockets); err != nil {
				return nil, err
			}
		}
	}
	for i := range res.Comparisons {
		res.Comparisons[i].Who = rawName
	}
	first, last := res.Comparisons[0], res.Comparisons[len(res.Comparisons)-2]
	res.Finding = fmt.Sprintf("Raw NVMe/TCP reaches %.2f of the sockets baseline (%s) to %.2f (%s).", first.Ratio.Value, first.What, last.Ratio.Value, last.What)
	res.Note("The sockets baseline is the ceiling of the same run: the payload and 16 bytes of acknowledgement over TCP, as many connections, as many bytes in flight, the same congestion control, into memory that is as large and as cold as the namespace.")
	return res, nil
}
