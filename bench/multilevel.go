package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
)

// everyLevel is the interval of checkpoints that also go to the second level: one in
// ten, as in the paper.
const everyLevel = 10

// A levelRow is an application whose checkpoints go to a first level, and every tenth
// one to a second level.
type levelRow struct {
	name         string
	first, tenth *side
	drains       bool // a background process copies every tenth to the second level
	design       *design
}

// multilevel runs an application whose checkpoints go to a fast first level, and every
// tenth one to a slow second level. The first level is nvmecr, which supports this in
// several ways, or one of the peers.
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
	rows := levelRows(l, second[:len(second)-1], second[len(second)-1])
	if dir != "" {
		others, err := b.designRows(a, dir)
		if err != nil {
			res.NotMeasured("the designs of SCR and VELOC", "%v", err)
		}
		rows = append(rows, others...)
	}
	return res, l.rows(ctx, res, rows)
}

// slowLevel returns the second level to which nvmecr copies: the last directory that
// the user names, or a directory with a limited rate. It returns an empty string if
// there is none.
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

// levelRows returns the rows to measure: nvmecr, which copies every tenth checkpoint
// itself if possible, and the peers.
func levelRows(l *levelRun, peers []*side, second *side) []levelRow {
	app := l.a.side("nvmecr")
	rows := []levelRow{{name: "nvmecr", first: app, tenth: second}, {name: "nvmecr without a second level", first: app, tenth: app}}
	if l.a.cfg.Level2 != "" {
		rows = append(rows[:1], levelRow{name: "nvmecr, copied in the background", first: app, tenth: l.sets(), drains: true}, rows[1])
	}
	for _, p := range peers {
		rows = append(rows, levelRow{name: p.name, first: p, tenth: second})
	}
	return rows
}

// rows measures the rows.
func (l *levelRun) rows(ctx context.Context, res *result.Result, rows []levelRow) error {
	l.Count = max(l.Count, everyLevel+everyLevel/2) // the tenth is copied while later ones are written
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
		Rows: "first level", Columns: []result.Column{{Name: "checkpoint time", Unit: result.Duration}, {Name: "recovery time", Unit: result.Duration}, {Name: "from the second level", Unit: result.Duration}, {Name: "progress rate", Unit: result.Ratio}},
		Note: "Recovery reads the newest checkpoint of the first level, or the tenth in the directory of the second one. Node-local is memory of this host, which " +
			"is lost with the node; SCR and VELOC themselves are not run, and a partner's copy crosses no network here.",
	}
	for i, row := range rows {
		run, recovery, second, err := l.row(ctx, row, phase)
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		t.Add(row.name, result.Count(run.inCheckpoints), result.Count(recovery), second, result.Count(run.progress()))
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

// row measures one row. It fails unless the background copy has succeeded.
func (l *levelRun) row(ctx context.Context, row levelRow, phase float64) (run *appRun, recovery float64, second result.Cell, err error) {
	var d *drain
	if row.drains {
		if d, err = l.startDrain(everyLevel - 1); err != nil {
			return nil, 0, second, err
		}
	}
	var flushed error
	run, err = l.applicationRun(ctx, func(k int) *side {
		if row.design != nil && k > 0 && k%everyLevel == 0 {
			flushed = errors.Join(flushed, row.design.flush(k-1))
		}
		if k%everyLevel == everyLevel-1 {
			return row.tenth
		}
		return row.first
	}, phase)
	if d != nil {
		err = errors.Join(err, d.end())
	}
	if row.design != nil {
		err = errors.Join(err, flushed, row.design.wait())
	}
	if err != nil {
		return nil, 0, second, err
	}
	if d != nil && d.now() != drainedWhole {
		return nil, 0, second, fmt.Errorf("nothing was copied: %s", lastLine(d.said.bytes()))
	}
	back, err := row.first.read(ctx, l.set, l.Count-2)
	if err != nil {
		return nil, 0, second, err
	}
	second, err = l.fromSecond(ctx, row)
	return run, back.Span().Seconds(), second, err
}

// fromSecond reads the tenth checkpoint from the second level. The cell is empty if the
// checkpoint is not there.
func (l *levelRun) fromSecond(ctx context.Context, row levelRow) (result.Cell, error) {
	const tenth = everyLevel - 1
	from := row.tenth
	switch {
	case row.drains:
		if err := l.remove(ctx, tenth); err != nil {
			return result.None(), err
		}
		from = &side{name: row.name, group: l.a.group, path: func(rank, k int) string {
			return filepath.Join(l.dir, fmt.Sprintf("drained.%d", k), fmt.Sprintf("rank%d", rank), drainedFile(rank, k))
		}}
	case row.design != nil:
		from = row.design.second
	case row.tenth == row.first:
		return result.None(), nil
	}
	if os.Geteuid() == 0 {
		from.cold = dropCaches
	}
	r, err := from.read(ctx, l.set, tenth)
	return result.Count(r.Span().Seconds()), err
}
