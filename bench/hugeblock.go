package bench

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/bench/workers"
	"nvmecr/nvmf"
)

// hugeblocks are the sizes to measure.
var hugeblocks = []nvmf.Bytes{4 * nvmf.KiB, 8 * nvmf.KiB, 16 * nvmf.KiB, 32 * nvmf.KiB, 64 * nvmf.KiB, 128 * nvmf.KiB, 256 * nvmf.KiB, nvmf.MiB, 4 * nvmf.MiB}

// hugeblock writes the same checkpoints with hugeblocks of several sizes. A store has
// one hugeblock size, so each size has its own store, formatted in turns on the same
// targets. The order of the sizes changes from round to round.
func hugeblock(ctx context.Context, e *Env) (res *result.Result, err error) {
	b, err := e.testbed(ctx, e.Size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	const repeats = 3
	rounds := max(1, (e.Rounds+repeats-1)/repeats)
	writes, resident := make(map[nvmf.Bytes][]workers.Round), make(map[nvmf.Bytes]float64)
	ranks := 0
	for round := range rounds {
		for i := range hugeblocks {
			size := hugeblocks[(i+round)%len(hugeblocks)]
			e.progress("hugeblocks of "+size.String(), round*len(hugeblocks)+i, rounds*len(hugeblocks))
			took, memory, n, err := b.withHugeblock(ctx, size, repeats)
			if err != nil {
				return nil, fmt.Errorf("hugeblocks of %s: %w", size, err)
			}
			writes[size], resident[size], ranks = append(writes[size], took...), memory, n
		}
	}
	res = &result.Result{}
	total := float64(ranks) * float64(e.Size) / float64(nvmf.MiB)
	t := result.Table{Title: fmt.Sprintf("%s, %s each in pieces of %s", rankCount(ranks), e.Size, e.Transfer), Rows: "hugeblock", Columns: []result.Column{
		{Name: "checkpoint", Unit: result.Duration}, {Name: "bandwidth", Unit: "MiB/s"}, {Name: "memory of a rank", Unit: result.Size}}}
	plot := result.Plot{Title: "Time of a checkpoint", X: result.Axis{Name: "hugeblock", Unit: result.Size, Log: true}, Y: result.Axis{Name: "time", Unit: result.Duration}}
	best := hugeblocks[0]
	for _, size := range hugeblocks {
		s := spans(writes[size])
		t.Add(size.String(), result.Number(result.Middle(s)), result.Number(result.Per(total, s)), result.Count(resident[size]))
		plot.Add("nvmecr", float64(size), result.Middle(s))
		if s.Median() < spans(writes[best]).Median() {
			best = size
		}
	}
	res.Tables, res.Plots = append(res.Tables, t), append(res.Plots, plot)
	small, usual := spans(writes[4*nvmf.KiB]).Median(), spans(writes[32*nvmf.KiB]).Median()
	res.Claims = append(res.Claims, paper.HugeblockBest.Beside("%s has the shortest median here", best),
		paper.HugeblockGain.Beside("%s", change(1-usual/small)))
	res.Finding = fmt.Sprintf("Checkpoints take %s with hugeblocks of 32 KiB than with blocks of 4 KiB.", change(1-usual/small))
	return res, nil
}

// withHugeblock formats the store and writes checkpoints. The first checkpoint is not
// timed.
func (b *testbed) withHugeblock(ctx context.Context, size nvmf.Bytes, repeats int) (took []workers.Round, memory float64, ranks int, err error) {
	a, err := b.env.startApplication(ctx, b.store, fmt.Sprintf("hugeblock=%d", uint64(size)))
	if err != nil {
		return nil, 0, 0, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	for k := range repeats + 1 {
		r, err := a.side("nvmecr").write(ctx, work{size: b.env.Size, transfer: b.env.Transfer}, k)
		if err != nil {
			return nil, 0, 0, err
		}
		if k > 0 {
			took = append(took, r)
		}
	}
	memory, err = resident(ctx, a.group, "/nonexistent")
	return took, memory, a.group.Size(), err
}
