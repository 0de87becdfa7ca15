package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"time"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// What a second level may cost.
const (
	drainSlows  = 0.05 // checkpoints, while one is drained
	drainTakes  = 0.01 // of computing
	restoreRate = 0.9  // of reading the directory alone
)

// drained are the checkpoints that go to the second level; those that are timed do not.
const drained = "drained.{step}.*"

// A levelRun is an application with a store, and a second level in a slow directory.
type levelRun struct {
	*Env
	a   *application
	dir string // of the store on the second level
	set work   // a checkpoint that is drained
	w   work   // one that is not
}

// level2 is what a second level costs an application, and how fast a checkpoint comes back from there.
func (g *goalRun) level2(ctx context.Context) (err error) {
	e := g.with(max(1, cores()-1)) // the target has a core, too
	b, err := e.testbed(ctx, 2*e.Size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	l, err := b.levelRun(ctx)
	if err != nil {
		g.res.NotMeasured("a second level", "%v", err)
		return ctx.Err()
	}
	if err := l.background(ctx, g); err != nil {
		return err
	}
	return l.restores(ctx, g)
}

// levelRun starts the application.
func (b *testbed) levelRun(ctx context.Context) (*levelRun, error) {
	e := b.env
	dir, err := b.slowDirectory(slowRate)
	if err != nil {
		return nil, err
	}
	a, err := b.application(ctx, "view=job", "level2="+dir)
	if err != nil {
		return nil, err
	}
	return &levelRun{
		Env: e, a: a, dir: filepath.Join(dir, storeName), set: work{size: e.Size, transfer: e.Transfer},
		w: work{size: max(e.Size/8/e.Transfer, 1) * e.Transfer, transfer: e.Transfer},
	}, nil
}

// drainedFile is the name of a rank's file of the k-th checkpoint that is drained.
func drainedFile(rank, k int) string { return fmt.Sprintf("drained.%d.%d", k, rank) }

// sets is the application writing what is drained.
func (l *levelRun) sets() *side {
	return &side{name: "drained", group: l.a.group, path: func(rank, k int) string { return path.Join(l.a.cfg.Mount, drainedFile(rank, k)) }}
}

// remove removes one from the store.
func (l *levelRun) remove(ctx context.Context, k int) error {
	_, err := l.a.group.Do(ctx, func(rank int) string { return "unlink " + l.sets().path(rank, k) })
	return err
}

// levelSteps are what the application does while a checkpoint is drained, or while none is.
type levelSteps struct{ turns, seconds stats.Sample }

// levelPhase is how long a compute phase is.
const levelPhase = 50 * time.Millisecond

// step is a compute phase and a checkpoint.
func (l *levelRun) step(ctx context.Context, k int) (turns, seconds float64, err error) {
	r, err := l.a.group.DoAll(ctx, fmt.Sprintf("compute %d", levelPhase.Nanoseconds()))
	if err != nil {
		return 0, 0, err
	}
	w, err := l.a.side("nvmecr").write(ctx, l.w, k)
	return float64(r.Sum("turns")), w.Span().Seconds(), err
}

// background is steps with and without a checkpoint that is drained meanwhile. The process that `nvmecr run` has for it waits some seconds
// until it is sure that the checkpoint is complete: these are without.
func (l *levelRun) background(ctx context.Context, g *goalRun) error {
	var slower, less, steps, took stats.Sample
	for round := range 1 + l.Rounds {
		l.progress("draining a checkpoint", round, 1+l.Rounds)
		with, without, seconds, err := l.drainOne(ctx, round)
		if err != nil {
			return err
		}
		if round > 0 {
			slower = append(slower, with.seconds.Mean()/without.seconds.Mean()-1)
			less = append(less, 1-with.turns.Mean()/without.turns.Mean())
			steps, took = append(steps, float64(len(with.turns))), append(took, seconds)
		}
	}
	beside := fmt.Sprintf("%s of each drained in %s, %.0f checkpoints of %s meanwhile", l.set.size, result.Duration.Full(took.Median()), steps.Median(), l.w.size)
	g.add(result.Goal{What: "checkpoints, while one is drained, take longer by, " + rankCount(l.Ranks), Limit: drainSlows, AtMost: true, Unit: result.Percent, Measured: result.Interval(slower), Beside: beside})
	g.add(result.Goal{What: "a compute loop, while a checkpoint is drained, loses, " + rankCount(l.Ranks), Limit: drainTakes, AtMost: true, Unit: result.Percent, Measured: result.Interval(less)})
	return nil
}

// drainOne writes a checkpoint and has it drained, in so many seconds.
func (l *levelRun) drainOne(ctx context.Context, k int) (with, without levelSteps, seconds float64, err error) {
	if _, err := l.sets().write(ctx, l.set, k); err != nil {
		return with, without, 0, err
	}
	d, err := l.startDrain(k)
	if err != nil {
		return with, without, 0, err
	}
	defer func() { err = errors.Join(err, d.end()) }()
	var began time.Time
	for n := 0; d.now() != drainedWhole; n++ {
		before := d.now()
		if before == drainedHalf && began.IsZero() {
			began = time.Now()
		}
		turns, seconds, err := l.step(ctx, n)
		if err == nil {
			err = d.failed()
		}
		if err != nil {
			return with, without, 0, err
		}
		if d.now() != before { // in the midst of it
			continue
		}
		to := &without
		if before == drainedHalf {
			to = &with
		}
		to.turns, to.seconds = append(to.turns, turns), append(to.seconds, seconds)
	}
	return with, without, time.Since(began).Seconds(), l.remove(ctx, k)
}

// A drain is the process that `nvmecr run` has for it.
type drain struct {
	cmd         *exec.Cmd
	lifeline    io.Closer
	done        chan error
	half, whole string // directories that are there while it copies, and then
	said        bytes.Buffer
}

// drainState is how far it is.
type drainState int

const (
	drainedNot drainState = iota
	drainedHalf
	drainedWhole
)

// startDrain starts one, for the k-th checkpoint.
func (l *levelRun) startDrain(k int) (*drain, error) {
	name := fmt.Sprintf("drained.%d", k)
	d := &drain{
		cmd: l.a.tool("drain", "--follow", "--keep", "1", drained), done: make(chan error, 1),
		half: filepath.Join(l.dir, ".draining", name), whole: filepath.Join(l.dir, name),
	}
	d.cmd.Stdout, d.cmd.Stderr = &d.said, &d.said
	var err error
	if d.lifeline, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { d.done <- d.cmd.Wait() }()
	return d, nil
}

func (d *drain) now() drainState {
	if _, err := os.Stat(d.whole); err == nil {
		return drainedWhole
	}
	if _, err := os.Stat(d.half); err == nil {
		return drainedHalf
	}
	return drainedNot
}

// failed is why it has ended, if it has.
func (d *drain) failed() error {
	select {
	case err := <-d.done:
		d.done <- err
		return fmt.Errorf("nvmecr drain has ended: %w: %s", err, lastLine(d.said.Bytes()))
	default:
		return nil
	}
}

// end ends it.
func (d *drain) end() error {
	d.lifeline.Close()
	if err := <-d.done; err != nil {
		return fmt.Errorf("nvmecr drain: %w: %s", err, lastLine(d.said.Bytes()))
	}
	return nil
}

// tool is a command of nvmecr for the application's store.
func (a *application) tool(args ...string) *exec.Cmd {
	cmd := exec.Command(a.env.Nvmecr, args...)
	cmd.Env = a.cfg.Environ(base())
	return cmd
}

// restores copies the checkpoint that is on the second level back, in turns with as many processes that only read it there.
func (l *levelRun) restores(ctx context.Context, g *goalRun) (err error) {
	k := l.Rounds // the last one
	plain, err := l.startGroup(ctx, base(), l.Env.Rank)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Stop()) }()
	reading := &side{name: "reading", group: plain, path: func(rank, k int) string {
		return filepath.Join(l.dir, fmt.Sprintf("drained.%d", k), drainedFile(rank, k))
	}}
	var restored, read stats.Sample
	for round := range 1 + l.Rounds {
		l.progress("restoring a checkpoint", round, 1+l.Rounds)
		r, err := reading.read(ctx, l.set, k)
		if err != nil {
			return err
		}
		took, err := l.restore(ctx, k)
		if err != nil {
			return err
		}
		if round > 0 {
			restored, read = append(restored, took.Seconds()), append(read, r.Span().Seconds())
		}
	}
	return g.ratio("restoring from a second level beside reading the directory alone, "+rankCount(l.Ranks), restoreRate, restored, read,
		float64(l.Ranks)*float64(l.set.size)/float64(nvmf.MiB), "MiB/s")
}

// restore has the checkpoint copied back while no rank runs, as before a job, looks whether it is there, and removes it from the store.
func (l *levelRun) restore(ctx context.Context, k int) (took time.Duration, err error) {
	if err := l.a.group.Stop(); err != nil {
		return 0, err
	}
	begin := time.Now()
	said, err := l.a.tool("restore", "--from", "level2", drained).CombinedOutput()
	took = time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("nvmecr restore: %w: %s", err, lastLine(said))
	}
	if err := l.a.startRanks(ctx); err != nil {
		return 0, err
	}
	if _, err := l.sets().read(ctx, l.set, k); err != nil {
		return 0, err
	}
	return took, l.remove(ctx, k)
}
