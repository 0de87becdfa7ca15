package bench

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
)

// everyLevel is which checkpoint goes to the second level, too: the paper's one
// in ten.
const everyLevel = 10

// multilevel runs an application whose checkpoints go to a fast first level,
// and every tenth to a slow second one: with nvmecr first, and with each peer
// first.
func multilevel(ctx context.Context, e *Env) (res *result.Result, err error) {
	b, err := e.testbed(ctx, e.Size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, err := b.application(ctx)
	if err != nil {
		return nil, err
	}
	res = &result.Result{}
	peers, err := b.peers(ctx, a, res)
	if err != nil {
		return nil, err
	}
	if len(peers) == 0 {
		return nil, errors.New("there is no second level: name a directory with --peer dir:PATH")
	}
	second := peers[len(peers)-1]
	longer := *e
	longer.Count = max(e.Count, everyLevel)
	app := a.side("nvmecr")
	probe, err := app.write(ctx, work{size: e.Size, transfer: e.Transfer}, 0)
	if err != nil {
		return nil, err
	}
	phase := e.Compute.Seconds()
	if phase == 0 {
		phase = 10 * probe.Span().Seconds()
	}
	t := result.Table{
		Title: fmt.Sprintf("%d checkpoints of %s of each of %s, every %dth on %s, compute phases of %s between",
			longer.Count, e.Size, rankCount(a.group.Size()), everyLevel, second.name, result.Duration.Full(phase)),
		Rows: "first level", Columns: []result.Column{{Name: "checkpoint time", Unit: result.Duration}, {Name: "recovery time", Unit: result.Duration}, {Name: "progress rate", Unit: result.Ratio}},
	}
	for _, first := range append([]*side{app}, peers[:len(peers)-1]...) {
		run, err := longer.applicationRun(ctx, func(k int) *side {
			if k%everyLevel == everyLevel-1 {
				return second
			}
			return first
		}, phase)
		if err != nil {
			return nil, err
		}
		back, err := first.read(ctx, work{size: e.Size, transfer: e.Transfer}, longer.Count-2)
		if err != nil {
			return nil, err
		}
		t.Add(first.name, result.Count(run.inCheckpoints), result.Count(back.Span().Seconds()), result.Count(run.progress()))
		if first == app {
			res.Finding = fmt.Sprintf("With nvmecr as first level the application computes in %.1f%% of its time: %d checkpoints take %s, to read the newest back %s.",
				100*run.progress(), longer.Count, result.Duration.Full(run.inCheckpoints), result.Duration.Full(back.Span().Seconds()))
			res.Claims = append(res.Claims, paper.MultilevelCheckpoint.Beside("%s", result.Duration.Full(run.inCheckpoints)),
				paper.MultilevelRecovery.Beside("%s", result.Duration.Full(back.Span().Seconds())), paper.MultilevelProgress.Beside("%.3f", run.progress()))
		}
	}
	t.Note = "Recovery reads the newest checkpoint of the first level."
	res.Tables = append(res.Tables, t)
	return res, nil
}
