package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// Limits for the costs of a second level.
const (
	drainSlows  = 0.05 // part by which checkpoints take longer while one is drained
	drainTakes  = 0.01 // part of the compute time that draining takes
	restoreRate = 0.9  // share of the rate of only reading the directory
)

// drained is the pattern of the checkpoints that go to the second level. Checkpoints
// that are timed do not match it.
const drained = "drained.{step}.*"

// A levelRun is an application with a store, and a slow directory as its second level.
type levelRun struct {
	*Env
	a    *application
	dir  string // directory of the store on the second level; empty if checkpoints are copied to other targets
	set  work   // the work of a checkpoint that is drained
	w    work   // the work of a checkpoint that is not drained
	keep int    // number of drained checkpoints to keep
}

// level2 measures how much a second level slows an application down, and how fast a
// checkpoint is restored from it.
func (g *goalRun) level2(ctx context.Context) (err error) {
	e := g.beside()
	var b *testbed
	err = aside(func() (err error) {
		b, err = e.testbed(ctx, 2*e.Size)
		return err
	})
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
	var dir string
	err := aside(func() (err error) {
		dir, err = b.slowDirectory(slowRate)
		return err
	})
	if err != nil {
		return nil, err
	}
	a, err := b.application(ctx, "view=job", "level2="+dir)
	if err != nil {
		return nil, err
	}
	return e.levels(a, filepath.Join(dir, storeName)), nil
}

// levels returns the application with checkpoints that go to dir.
func (e *Env) levels(a *application, dir string) *levelRun {
	return &levelRun{
		Env: e, a: a, dir: dir, keep: 1, set: work{size: e.Size, transfer: e.Transfer},
		w: work{size: max(e.Size/8/e.Transfer, 1) * e.Transfer, transfer: e.Transfer},
	}
}

// verb returns the word for what is done with a checkpoint, for messages.
func (l *levelRun) verb() string {
	switch data, _ := l.a.cfg.Copies.Shards(); {
	case l.dir != "":
		return "drained"
	case data > 0:
		return "cut into shards (" + string(l.a.cfg.Copies) + ")"
	}
	return "copied to another target"
}

// drainedFile returns the name of a rank's file of the k-th drained checkpoint.
func drainedFile(rank, k int) string { return fmt.Sprintf("drained.%d.%d", k, rank) }

// sets returns the application's side for drained checkpoints.
func (l *levelRun) sets() *side {
	return &side{name: "drained", group: l.a.group, path: func(rank, k int) string { return path.Join(l.a.cfg.Mount, drainedFile(rank, k)) }}
}

// remove removes a drained checkpoint from the store.
func (l *levelRun) remove(ctx context.Context, k int) error {
	_, err := l.a.group.Do(ctx, func(rank int) string { return "unlink " + l.sets().path(rank, k) })
	return err
}

// levelSteps has the work of the application while a checkpoint is drained, or while
// none is.
type levelSteps struct{ turns, seconds stats.Sample }

// levelPhase is the length of a compute phase.
const levelPhase = 50 * time.Millisecond

// step runs a compute phase and writes a checkpoint.
func (l *levelRun) step(ctx context.Context, k int) (turns, seconds float64, err error) {
	r, err := l.a.group.DoAll(ctx, fmt.Sprintf("compute %d", levelPhase.Nanoseconds()))
	if err != nil {
		return 0, 0, err
	}
	w, err := l.a.side("nvmecr").write(ctx, l.w, k)
	return float64(r.Sum("turns")), w.Span().Seconds(), err
}

// background measures steps while a checkpoint is drained, and while none is. The
// draining process of `nvmecr run` waits some seconds to make sure that the checkpoint
// is complete. Steps in this time count as steps without draining.
func (l *levelRun) background(ctx context.Context, g *goalRun) error {
	var slower, less, steps, took, share stats.Sample
	for round := range 1 + l.Rounds {
		l.progress("draining a checkpoint", round, 1+l.Rounds)
		with, without, one, err := l.drainOne(ctx, round)
		if err != nil {
			return err
		}
		if round > 0 {
			slower = append(slower, with.seconds.Mean()/without.seconds.Mean()-1)
			less = append(less, 1-with.turns.Mean()/without.turns.Mean())
			steps, took = append(steps, float64(len(with.turns))), append(took, one.seconds)
			share = append(share, one.awake/one.seconds)
		}
	}
	beside := fmt.Sprintf("%s of each %s in %s, %.0f checkpoints of %s meanwhile", l.set.size, l.verb(), result.Duration.Full(took.Median()), steps.Median(), l.w.size)
	g.add(result.Goal{What: "checkpoints, while one is " + l.verb() + ", take longer by, " + rankCount(l.Ranks), Limit: drainSlows, AtMost: true, Unit: result.Percent, Measured: result.Interval(slower), Beside: beside})
	g.add(result.Goal{What: "a compute loop, while a checkpoint is " + l.verb() + ", loses, " + rankCount(l.Ranks), Limit: drainTakes, AtMost: true, Unit: result.Percent, Measured: result.Interval(less),
		Beside: fmt.Sprintf("threads of that process that do not step back take %s of one core", result.Percent.Full(share.Median()))})
	return nil
}

// drainTook has the duration of a drain in seconds, and the processor time that it may
// have taken from other processes.
type drainTook struct{ seconds, awake float64 }

// drainOne writes a checkpoint that is then drained.
func (l *levelRun) drainOne(ctx context.Context, k int) (with, without levelSteps, took drainTook, err error) {
	if _, err := l.sets().write(ctx, l.set, k); err != nil {
		return with, without, took, err
	}
	d, err := l.startDrain(k)
	if err != nil {
		return with, without, took, err
	}
	defer func() { err = errors.Join(err, d.end()) }()
	var began time.Time
	var awakeBefore time.Duration
	for n := 0; d.now() != drainedWhole; n++ {
		before := d.now()
		if before == drainedHalf && began.IsZero() {
			began = time.Now()
			if awakeBefore, _, err = processorTime(d.cmd.Process.Pid); err != nil {
				return with, without, took, err
			}
		}
		turns, seconds, err := l.step(ctx, n)
		if err == nil {
			err = d.failed()
		}
		if err != nil {
			return with, without, took, err
		}
		if d.now() != before { // the state has changed during the step
			continue
		}
		to := &without
		if before == drainedHalf {
			to = &with
		}
		to.turns, to.seconds = append(to.turns, turns), append(to.seconds, seconds)
	}
	took.seconds = time.Since(began).Seconds()
	after, _, err := processorTime(d.cmd.Process.Pid)
	if err != nil {
		return with, without, took, err
	}
	took.awake = (after - awakeBefore).Seconds()
	return with, without, took, l.remove(ctx, k)
}

// A drain is the draining process of `nvmecr run`.
type drain struct {
	cmd      *exec.Cmd
	lifeline io.Closer
	done     chan error
	now      func() drainState
	said     output
}

// drainState is the progress of a drain.
type drainState int

const (
	drainedNot drainState = iota
	drainedHalf
	drainedWhole
)

// startDrain starts a drain of the k-th checkpoint.
func (l *levelRun) startDrain(k int) (*drain, error) {
	d := &drain{cmd: l.a.tool("drain", "--follow", "--keep", strconv.Itoa(l.keep), drained), done: make(chan error, 1)}
	d.now = d.copying
	if l.dir != "" {
		d.now = draining(l.dir, fmt.Sprintf("drained.%d", k))
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

// draining returns a function that determines the state of a drain from the directories
// that exist during a drain and afterwards.
func draining(dir, name string) func() drainState {
	there := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	return func() drainState {
		switch {
		case there(filepath.Join(dir, name)):
			return drainedWhole
		case there(filepath.Join(dir, ".draining", name)):
			return drainedHalf
		}
		return drainedNot
	}
}

// failed returns the error with which the process has ended, or nil if it is running.
func (d *drain) failed() error {
	select {
	case err := <-d.done:
		d.done <- err
		return fmt.Errorf("nvmecr drain has ended: %w: %s", err, lastLine(d.said.bytes()))
	default:
		return nil
	}
}

// end ends the process.
func (d *drain) end() error {
	d.lifeline.Close()
	if err := <-d.done; err != nil {
		return fmt.Errorf("nvmecr drain: %w: %s", err, lastLine(d.said.bytes()))
	}
	return nil
}

// tool returns a command of nvmecr for the application's store.
func (a *application) tool(args ...string) *exec.Cmd {
	cmd := exec.Command(a.env.Nvmecr, args...)
	cmd.Env = a.cfg.Environ(base())
	return cmd
}

// restores restores the checkpoint from the second level, in turns with as many
// processes that only read it there.
func (l *levelRun) restores(ctx context.Context, g *goalRun) (err error) {
	k := l.Rounds // the last drained checkpoint
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
		took, err := l.restore(ctx, "level2", k)
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

// restore restores the checkpoint from a level while no rank runs, as before a job. It
// checks that the checkpoint is complete, and removes it from the store.
func (l *levelRun) restore(ctx context.Context, from string, k int) (took time.Duration, err error) {
	if err := l.a.group.Stop(); err != nil {
		return 0, err
	}
	begin := time.Now()
	said, err := l.a.tool("restore", "--from", from, "--checkpoint", strconv.Itoa(k), drained).CombinedOutput()
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
