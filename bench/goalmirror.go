package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
	"nvmecr/nvmf/mirror"
)

const mibPerSecond result.Unit = "MiB/s"

// Limits for the cost of mirrored targets, and for the rate of a rebuild.
const (
	mirrorCosts = 2.1 // times the duration of a checkpoint on one target
	rebuildRate = 0.8 // share of the rate of reading one target and writing the other one, each alone
)

// A mirrorRun has a mirror on two targets, and a plain namespace on a third one.
type mirrorRun struct {
	*goalRun
	w       backgroundWork
	targets [3]*target // home, partner, plain
}

// mirror measures how much a mirror slows a rank's checkpoints down, and how fast a
// lost side is rebuilt.
func (g *goalRun) mirror(ctx context.Context) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m := &mirrorRun{goalRun: g, w: backgroundWork{files: 1, bytes: 64 * nvmf.MiB, steps: 4}}
	m.w.piece = [][]byte{make([]byte, nvmf.MiB)}
	half := min(256*nvmf.MiB, (freeMemory() / 10).AlignDown(nvmf.MiB))
	for i := range m.targets {
		t, err := g.startTarget(ctx, fmt.Sprintf("mem:%d", uint64(2*half+nvmf.MiB)))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.Close()) }()
		if err := touch(ctx, t.ids[0]); err != nil {
			return err
		}
		m.targets[i] = t
	}
	if err := m.checkpoints(ctx, half); err != nil {
		return err
	}
	return m.rebuild(ctx, half)
}

// open opens the mirror. One side may be missing.
func (m *mirrorRun) open(ctx context.Context) (nvmf.Device, error) {
	var dials [2]mirror.Dial
	for s := range dials {
		dials[s] = func(ctx context.Context) (nvmf.Device, error) { return m.dial(ctx, s) }
	}
	return mirror.Open(ctx, dials, mirror.Options{Patience: time.Second})
}

func (m *mirrorRun) dial(ctx context.Context, target int) (nvmf.Device, error) {
	return dial.Open(ctx, m.targets[target].ids[0], dial.Options{})
}

// checkpoints writes the same checkpoints on the mirror and on one target, in turns.
func (m *mirrorRun) checkpoints(ctx context.Context, half nvmf.Bytes) error {
	var sides [2]*partition
	for i, open := range []func(context.Context) (nvmf.Device, error){m.open, func(ctx context.Context) (nvmf.Device, error) { return m.dial(ctx, 2) }} {
		dev, err := open(ctx)
		if err != nil {
			return err
		}
		p := &partition{dev: dev}
		seg := microfs.Segment{Length: half}
		if err = microfs.Format(ctx, dev, seg, microfs.FormatOptions{Generation: 1, Size: 1}); err == nil {
			p.fs, err = microfs.Mount(ctx, dev, seg, microfs.Options{Generation: 1})
		}
		if err != nil {
			return errors.Join(err, dev.Close())
		}
		defer p.close()
		sides[i] = p
	}
	for round := range m.Warm + m.Rounds {
		m.progress("mirrored checkpoints", round, m.Warm+m.Rounds)
		for i := range sides {
			p := sides[(round+i)%2]
			begin := time.Now()
			for step := range m.w.steps {
				if err := m.w.step(p.fs, step); err != nil {
					return err
				}
			}
			if round >= m.Warm {
				p.seconds = append(p.seconds, time.Since(begin).Seconds())
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	ratios, err := stats.Ratios(sides[0].seconds, sides[1].seconds)
	if err != nil {
		return err
	}
	amount := float64(m.w.bytes/nvmf.MiB) * float64(m.w.steps)
	m.add(result.Goal{
		What: "a checkpoint on mirrored targets, beside one on one target", Limit: mirrorCosts, AtMost: true, Unit: result.Ratio, Measured: result.Interval(ratios),
		Beside: fmt.Sprintf("%s and %s", mibPerSecond.Full(result.Per(amount, sides[0].seconds).Value), mibPerSecond.Full(result.Per(amount, sides[1].seconds).Value)),
	})
	return nil
}

// rebuild copies one side to the other one, which has other data. For comparison it
// reads and writes the same amount without a mirror.
func (m *mirrorRun) rebuild(ctx context.Context, half nvmf.Bytes) error {
	var sides [2]mirror.Side
	for s := range sides {
		dev, err := m.dial(ctx, s)
		if err != nil {
			return err
		}
		defer dev.Close()
		sides[s] = mirror.Side{Device: dev, Number: s}
	}
	var ours, theirs stats.Sample
	for round := range m.Warm + m.Rounds {
		m.progress("copying a side of a mirror", round, m.Warm+m.Rounds)
		if err := m.lose(ctx, sides[1]); err != nil {
			return err
		}
		begin := time.Now()
		if err := mirror.Resync(ctx, sides[0], sides[1], nil, nil); err != nil {
			return err
		}
		copied := time.Since(begin).Seconds()
		raw := 0.0
		for s, op := range []nvmf.Opcode{nvmf.Read, nvmf.Write} {
			seconds, err := rawSeconds(ctx, sides[s].Device, op, half)
			if err != nil {
				return err
			}
			raw += seconds
		}
		if round >= m.Warm {
			ours, theirs = append(ours, copied), append(theirs, raw)
		}
	}
	ratios, err := stats.Ratios(theirs, ours)
	if err != nil {
		return err
	}
	amount := float64(half / nvmf.MiB)
	m.add(result.Goal{ // reads and writes overlap, so the sum of their times is not a ceiling
		What: "a lost side of a mirror is copied, beside reading one target and writing the other one, each alone", Limit: rebuildRate, Unit: result.Ratio, Measured: result.Interval(ratios),
		Beside: fmt.Sprintf("%s of %s", mibPerSecond.Format(result.Per(amount, ours).Value), mibPerSecond.Full(result.Per(amount, theirs).Value)),
	})
	return nil
}

// lose makes the home side of the mirror continue alone, and clears the other side.
func (m *mirrorRun) lose(ctx context.Context, partner mirror.Side) error {
	start, length := mirror.States(partner.Device.Identity())
	q, err := newRawQueue(ctx, partner.Device, 0, 1)
	if err != nil {
		return err
	}
	defer q.queue.Close()
	id := partner.Device.Identity()
	wipe := []*nvmf.Command{{Opcode: nvmf.Write, LBA: nvmf.LBA(start / id.LBASize), Blocks: nvmf.LBA(length / id.LBASize), Data: [][]byte{make([]byte, length)}}}
	q.queue.Submit(wipe)
	if err := q.queue.Wait(wipe); err != nil {
		return err
	}
	dev, err := m.open(ctx)
	if err != nil {
		return err
	}
	mq, err := dev.OpenQueue(ctx, 1)
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	flush := []*nvmf.Command{{Opcode: nvmf.Flush}} // the loss is recorded before the flush completes
	mq.Submit(flush)
	return errors.Join(mq.Wait(flush), mq.Close(), dev.Close())
}

// rawSeconds reads or writes length bytes with eight commands of the largest size in flight.
func rawSeconds(ctx context.Context, dev nvmf.Device, op nvmf.Opcode, length nvmf.Bytes) (float64, error) {
	const depth = 8
	q, err := newRawQueue(ctx, dev, 0, 1)
	if err != nil {
		return 0, err
	}
	defer q.queue.Close()
	size := min(nvmf.MiB, dev.Identity().MaxTransfer)
	work, err := q.prepareStream(op, size, depth, int(length/size))
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	_, err = work()
	return time.Since(begin).Seconds(), err
}
