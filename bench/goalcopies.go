package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// copies measures how much copies in the background, second copies and shards, slow an
// application down.
func (g *goalRun) copies(ctx context.Context) error {
	for _, how := range []struct {
		copies  string
		targets int
	}{{"partner", 2}, {"rs:2+1", 3}} {
		if err := g.copiesOf(ctx, how.copies, how.targets); err != nil {
			return fmt.Errorf("copies %s: %w", how.copies, err)
		}
	}
	return nil
}

// copiesOf measures one kind of copies. The targets have their own cores, as in level2.
func (g *goalRun) copiesOf(ctx context.Context, how string, targets int) (err error) {
	e := g.beside()
	var t *target
	err = aside(func() (err error) {
		memory := make([]string, targets+2) // two for raw reads and writes
		for i := range memory {
			memory[i] = fmt.Sprintf("mem:%d", uint64(e.namespace((2*rebuiltSizes+2)*e.Size))) // half of it is for copies
		}
		t, err = e.startTarget(ctx, memory...)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for i, id := range t.ids {
		e.progress("touching the targets' memory", i, len(t.ids))
		if err := touch(ctx, id); err != nil {
			return err
		}
	}
	a, err := e.startApplication(ctx, t.ids[:targets], "view=job", "copies="+how)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	l := e.levels(a, "")
	if err := l.background(ctx, g); err != nil {
		return err
	}
	return l.rebuilds(ctx, g, t.ids[targets:])
}

// rebuiltSizes is the size of the checkpoint that is copied back, in checkpoints of the
// application. It is large because all data of a target is copied back after the target
// was lost.
const rebuiltSizes = 4

// rebuilds copies a checkpoint back to the store. For comparison, it reads the same
// amount from one target and then writes it to another one. The time for a checkpoint
// of one transfer is the start-up time of the command, and is subtracted.
func (l *levelRun) rebuilds(ctx context.Context, g *goalRun, targets []nvmf.TransportID) error {
	large, small := *l, *l
	large.set.size, small.set.size, small.keep = rebuiltSizes*l.set.size, l.set.transfer, 2
	for i, one := range []*levelRun{&large, &small} {
		if _, _, _, err := one.drainOne(ctx, l.Rounds+1+i); err != nil {
			return err
		}
	}
	length := nvmf.Bytes(l.Ranks) * (large.set.size - small.set.size)
	var starts, rebuilt, raw stats.Sample
	for round := range 1 + l.Rounds {
		l.progress("copying a checkpoint back", round, 1+l.Rounds)
		start, err := small.restore(ctx, "copies", l.Rounds+2)
		if err != nil {
			return err
		}
		took, err := large.restore(ctx, "copies", l.Rounds+1)
		if err != nil {
			return err
		}
		alone, err := rawCopy(ctx, targets, length)
		if err != nil {
			return err
		}
		if round > 0 {
			starts, rebuilt, raw = append(starts, start.Seconds()), append(rebuilt, (took-start).Seconds()), append(raw, alone)
		}
	}
	ratios, err := stats.Ratios(raw, rebuilt)
	if err != nil {
		return err
	}
	amount := float64(length / nvmf.MiB)
	g.add(result.Goal{ // reads and writes overlap, so the sum of their times is not a ceiling
		What: "a checkpoint that was " + l.verb() + " is copied back, beside reading one target and writing another one, each alone", Limit: rebuildRate, Unit: result.Ratio,
		Measured: result.Interval(ratios), Beside: fmt.Sprintf("%s of %s, once the command has started, which takes %s",
			mibPerSecond.Format(result.Per(amount, rebuilt).Value), mibPerSecond.Full(result.Per(amount, raw).Value), result.Duration.Full(starts.Median())),
	})
	return nil
}

// rawCopy reads length bytes from the first target, and then writes as many to the
// second one. It first deallocates these bytes on the second target: the space of a
// removed checkpoint in the store is deallocated as well, and a target in memory then
// has to allocate memory again.
func rawCopy(ctx context.Context, targets []nvmf.TransportID, length nvmf.Bytes) (seconds float64, err error) {
	for i, op := range []nvmf.Opcode{nvmf.Read, nvmf.Write} {
		err := withDevice(ctx, targets[i], func(dev nvmf.Device) error {
			if op == nvmf.Write {
				if err := deallocate(ctx, dev, length); err != nil {
					return err
				}
			}
			s, err := rawSeconds(ctx, dev, op, length)
			seconds += s
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return seconds, nil
}

func withDevice(ctx context.Context, id nvmf.TransportID, use func(nvmf.Device) error) error {
	dev, err := dial.Open(ctx, id, dial.Options{})
	if err != nil {
		return err
	}
	return errors.Join(use(dev), dev.Close())
}

// deallocate deallocates the first bytes of a device.
func deallocate(ctx context.Context, dev nvmf.Device, length nvmf.Bytes) error {
	q, err := dev.OpenQueue(ctx, 1)
	if err != nil {
		return err
	}
	cmd := []*nvmf.Command{{Opcode: nvmf.Deallocate, Blocks: nvmf.LBA(length / dev.Identity().LBASize)}}
	q.Submit(cmd)
	return errors.Join(q.Wait(cmd), q.Close())
}

// copying returns the state of a process that copies to other targets. Its copying threads have
// the policy SCHED_IDLE.
func (d *drain) copying() drainState {
	if bytes.Contains(d.said.bytes(), []byte("copied to other targets")) {
		return drainedWhole
	}
	if _, idle, err := processorTime(d.cmd.Process.Pid); err == nil && idle > 0 {
		return drainedHalf
	}
	return drainedNot
}

// output collects the output of a running process.
type output struct {
	mu  sync.Mutex // guards the buffer
	all bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(b)
}

func (o *output) bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.all.Bytes())
}
