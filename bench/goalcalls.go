package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/bench/workers"
	"nvmecr/nvmf"
)

// calls measures the cost of single calls: on files outside the mount, in whole
// programs, and on files of nvmecr.
func (g *goalRun) calls(ctx context.Context) error {
	for _, part := range []func(context.Context) error{g.callsOutside, g.programs, g.callsOnOurs} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// memoryOf returns a namespace in the memory of the rank.
func memoryOf(size nvmf.Bytes) []nvmf.TransportID {
	return []nvmf.TransportID{{Transport: nvmf.Mem, Size: size}}
}

// call has a single rank make a call count times, and returns the seconds for each.
func call(ctx context.Context, c *workers.Group, what string, count int, size nvmf.Bytes, path string) (float64, error) {
	r, err := c.DoAll(ctx, fmt.Sprintf("call %s %d %d %s", what, count, uint64(size), path))
	if err != nil {
		return 0, fmt.Errorf("%s of %s: %w", what, path, err)
	}
	return r[0].Time("body").Seconds() / float64(count), nil
}

// callsEach is the number of calls outside the mount for a sample. For each round there
// are pairsEach samples with each of several pairs of processes. Two processes differ,
// through the placement of their code and stacks, as much as the values to be measured.
const (
	callsEach = 10_000
	pairsEach = 3
	processes = 5
)

// outside is a rank under the preload and the plain rank that it is compared with.
type outside struct {
	what  string
	aside bool
	// start returns the two ranks.
	start func(e *Env, ctx context.Context) (ours, plain *workers.Group, end io.Closer, err error)
}

// callsOutside measures how much longer a call on a file outside the mount takes under
// the preload. The same rank runs on the same core, with and without the preload, in
// turns. The rank of a second pair has mounted its partition, and so has threads of the
// runtime. The kernel and the C library do more work for a process with several
// threads, so the plain rank of this pair has a second thread.
func (g *goalRun) callsOutside(ctx context.Context) error {
	for _, w := range []outside{
		{"under the preload costs more by", false, (*Env).preloaded},
		{"in a rank that has mounted costs more than in another of several threads by", true, (*Env).mountedBeside},
	} {
		if err := g.outside(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

func (g *goalRun) outside(ctx context.Context, w outside) error {
	names := []string{"write", "fstat", "read"}
	plain, more := make(map[string]stats.Sample), make(map[string]stats.Sample)
	n := processes
	if g.Quick {
		n = 1
	}
	for i := range n {
		g.progress("calls on files that are not ours", i, n)
		if err := g.pairsOutside(ctx, w, names, plain, more); err != nil {
			return err
		}
	}
	for _, name := range names {
		g.add(result.Goal{
			What: name + " of /dev/null " + w.what, Limit: 15e-9, AtMost: true, Aside: w.aside, Unit: result.Duration,
			Measured: result.Interval(more[name]), Beside: fmt.Sprintf("%s without", result.Duration.Full(plain[name].Median())),
		})
	}
	return nil
}

// pairsOutside measures one pair of processes.
func (g *goalRun) pairsOutside(ctx context.Context, w outside, names []string, plain, more map[string]stats.Sample) (err error) {
	e := g.with(1)
	ours, without, end, err := w.start(e, ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end.Close()) }()
	groups := []*workers.Group{without, ours}
	for round := range e.Warm + pairsEach*e.Rounds {
		for _, name := range names {
			var took [2]float64
			for i := range groups {
				which := (i + round) % 2
				if took[which], err = call(ctx, groups[which], name, callsEach, 1, "/dev/null"); err != nil {
					return err
				}
			}
			if round >= e.Warm {
				plain[name], more[name] = append(plain[name], took[0]), append(more[name], took[1]-took[0])
			}
		}
	}
	return nil
}

// preloaded starts a rank under the preload that never uses the mount, and a plain
// rank.
func (e *Env) preloaded(ctx context.Context) (ours, plain *workers.Group, end io.Closer, err error) {
	env, err := e.Under(e.Config, base())
	if err != nil {
		return nil, nil, nil, err
	}
	if ours, err = e.startPinned(ctx, env); err != nil {
		return nil, nil, nil, err
	}
	if plain, err = e.startPinned(ctx, base()); err != nil {
		return nil, nil, nil, errors.Join(err, ours.Stop())
	}
	return ours, plain, closer(func() error { return errors.Join(ours.Stop(), plain.Stop()) }), nil
}

// mountedBeside starts a rank with its partition mounted, and a plain rank with a
// second thread.
func (e *Env) mountedBeside(ctx context.Context) (ours, plain *workers.Group, end io.Closer, err error) {
	a, err := e.startApplication(ctx, memoryOf(64*nvmf.MiB), pinned+"=0")
	if err != nil {
		return nil, nil, nil, err
	}
	if plain, err = e.startPinned(ctx, base()); err != nil {
		return nil, nil, nil, errors.Join(err, a.Close())
	}
	end = closer(func() error { return errors.Join(a.Close(), plain.Stop()) })
	if _, err = plain.DoAll(ctx, "thread"); err != nil {
		return nil, nil, nil, errors.Join(err, end.Close())
	}
	return a.group, plain, end, nil
}

// startPinned starts ranks on the first core.
func (e *Env) startPinned(ctx context.Context, env []string) (*workers.Group, error) {
	c, err := e.startGroup(ctx, env, e.Rank)
	if err != nil {
		return nil, err
	}
	if _, err := c.DoAll(ctx, "pin 0"); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}
