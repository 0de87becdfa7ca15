package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
)

// everyLevel is which checkpoint goes to the second level, too: the paper's one
// in ten.
const everyLevel = 10

// A levelRow is an application whose checkpoints go to a first level, and every tenth elsewhere.
type levelRow struct {
	name         string
	first, tenth *side
	drains       bool // a process in the background copies the tenth to the second level
}

// multilevel runs an application whose checkpoints go to a fast first level, and every tenth to a slow second one: with nvmecr first, which has several
// ways to do so, and with each peer first.
func multilevel(ctx context.Context, e *Env) (res *result.Result, err error) {
	b, err := e.testbed(ctx, 2*e.Size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	res = &result.Result{}
	dir, err := b.slowLevel(res)
	if err != nil {
		return nil, err
	}
	a, err := b.application(ctx, "level2="+dir)
	if err != nil {
		return nil, err
	}
	peers, err := b.peers(ctx, a, res)
	if err != nil {
		return nil, err
	}
	second := peers
	if len(e.Peers) == 0 && dir != "" {
		slow, err := b.directorySide(ctx, a, fmt.Sprintf("a directory of %s a second", slowRate), filepath.Join(dir, "nvmecr-bench"))
		if err != nil {
			return nil, err
		}
		second = append(second, slow)
	}
	if len(second) == 0 {
		return nil, errors.New("there is no second level: name a directory with --peer dir:PATH")
	}
	l := &levelRun{Env: e, a: a, dir: filepath.Join(dir, storeName)}
	return res, l.rows(ctx, res, levelRows(l, second[:len(second)-1], second[len(second)-1]))
}

// slowLevel returns the second level that nvmecr copies to: the last directory that the user names, or one of limited rate; "" where there is none.
func (b *testbed) slowLevel(res *result.Result) (string, error) {
	if b.env.remote() {
		res.NotMeasured("copies in the background", "the process that makes them would be on this host, where no rank is")
		return "", nil
	}
	if n := len(b.env.Peers); n > 0 {
		return b.env.claims.in(b.env.Peers[n-1].Dir)
	}
	dir, err := b.slowDirectory(slowRate)
	if err != nil {
		res.NotMeasured("a directory of limited rate", "%v", err)
	}
	return dir, nil
}

// levelRows are what is measured: nvmecr, which copies the tenth itself where it can, and peers.
func levelRows(l *levelRun, peers []*side, second *side) []levelRow {
	app := l.a.side("nvmecr")
	rows := []levelRow{{"nvmecr", app, second, false}, {"nvmecr without a second level", app, app, false}}
	if l.a.cfg.Level2 != "" {
		rows = append(rows[:1], levelRow{"nvmecr, copied in the background", app, l.sets(), true}, rows[1])
	}
	for _, p := range peers {
		rows = append(rows, levelRow{p.name, p, second, false})
	}
	return rows
}

// rows measures them.
func (l *levelRun) rows(ctx context.Context, res *result.Result, rows []levelRow) error {
	l.Count = max(l.Count, everyLevel+everyLevel/2) // the tenth is copied while others are written
	l.set = work{size: l.Size, transfer: l.Transfer}
	phase := l.Compute.Seconds()
	if phase == 0 {
		probe, err := rows[0].first.write(ctx, l.set, 0)
		if err != nil {
			return err
		}
		phase = 10 * probe.Span().Seconds()
	}
	t := result.Table{
		Title: fmt.Sprintf("%d checkpoints of %s of each of %s, the %dth on %s, compute phases of %s between",
			l.Count, l.Size, rankCount(l.a.group.Size()), everyLevel, rows[0].tenth.name, result.Duration.Full(phase)),
		Rows: "first level", Columns: []result.Column{{Name: "checkpoint time", Unit: result.Duration}, {Name: "recovery time", Unit: result.Duration}, {Name: "progress rate", Unit: result.Ratio}},
		Note: "Recovery reads the newest checkpoint of the first level.",
	}
	for i, row := range rows {
		run, recovery, err := l.row(ctx, row, phase)
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		t.Add(row.name, result.Count(run.inCheckpoints), result.Count(recovery), result.Count(run.progress()))
		if i == 0 {
			inCheckpoints, back := result.Duration.Full(run.inCheckpoints), result.Duration.Full(recovery)
			res.Finding = fmt.Sprintf("With nvmecr as first level the application computes in %.1f%% of its time: %d checkpoints take %s, to read the newest back %s.",
				100*run.progress(), l.Count, inCheckpoints, back)
			res.Claims = append(res.Claims, paper.MultilevelCheckpoint.Beside("%s", inCheckpoints),
				paper.MultilevelRecovery.Beside("%s", back), paper.MultilevelProgress.Beside("%.3f", run.progress()))
		}
	}
	res.Tables = append(res.Tables, t)
	return nil
}

// row measures one. What is copied in the background is there in the end, or that is an error.
func (l *levelRun) row(ctx context.Context, row levelRow, phase float64) (run *appRun, recovery float64, err error) {
	var d *drain
	if row.drains {
		if d, err = l.startDrain(everyLevel - 1); err != nil {
			return nil, 0, err
		}
	}
	run, err = l.applicationRun(ctx, func(k int) *side {
		if k%everyLevel == everyLevel-1 {
			return row.tenth
		}
		return row.first
	}, phase)
	if d != nil {
		err = errors.Join(err, d.end())
	}
	if err != nil {
		return nil, 0, err
	}
	if d != nil {
		if d.now() != drainedWhole {
			return nil, 0, fmt.Errorf("nothing was copied: %s", lastLine(d.said.Bytes()))
		}
		if err := l.remove(ctx, everyLevel-1); err != nil {
			return nil, 0, err
		}
	}
	back, err := row.first.read(ctx, work{size: l.Size, transfer: l.Transfer}, l.Count-2)
	return run, back.Span().Seconds(), err
}
