package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// background measures what state checkpoints in the background cost an application. It runs the
// same work on two partitions: one with the usual log, and one with a log so long that state
// checkpoints are hardly needed. The application does not compute in between, so none of the cost
// is hidden.
func background(ctx context.Context, e *Env) (res *result.Result, err error) {
	res = &result.Result{}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	size := min(nvmf.GiB, (freeMemory() / 4).AlignDown(nvmf.MiB))
	t, err := e.startTarget(ctx, fmt.Sprintf("mem:%d", uint64(2*size)))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	e.progress("touching the target's memory", 0, 1)
	if err := touch(ctx, t.ids[0]); err != nil {
		return nil, err
	}
	for _, w := range []backgroundWork{
		{name: "checkpoints, two files of 64 MiB in turns", files: 1, bytes: 64 * nvmf.MiB, steps: 48},
		{name: "checkpoints of 500 files of 4 KiB beside 20,000 others", others: 20_000, files: 500, bytes: 4 * nvmf.KiB, steps: 24},
	} {
		if err := w.measure(ctx, e, res, t.ids[0], size); err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return res, nil
}

// backgroundWork is a checkpoint. Its files are written, flushed and closed, and
// replace those of the checkpoint before the last one.
type backgroundWork struct {
	name   string
	others int // empty files that exist all the time
	files  int
	bytes  nvmf.Bytes // bytes of each file
	steps  int        // checkpoints that are timed together
	piece  [][]byte
}

// A partition is one side of the comparison.
type partition struct {
	dev     nvmf.Device
	fs      *microfs.FS
	seconds stats.Sample
}

func (p *partition) close() error { return errors.Join(p.fs.Unmount(), p.dev.Close()) }

func (w *backgroundWork) partition(ctx context.Context, id nvmf.TransportID, seg microfs.Segment, logPages int) (*partition, error) {
	dev, err := dial.Open(ctx, id, dial.Options{})
	if err != nil {
		return nil, err
	}
	p := &partition{dev: dev}
	err = microfs.Format(ctx, dev, seg, microfs.FormatOptions{Generation: 1, Size: 1, LogPages: logPages})
	if err == nil {
		p.fs, err = microfs.Mount(ctx, dev, seg, microfs.Options{Generation: 1})
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	for i := 0; i < w.others && err == nil; i++ {
		var f *microfs.File
		if f, err = p.fs.Open(microfs.RootIno, "other"+strconv.Itoa(i), syscall.O_RDONLY|syscall.O_CREAT, 0o600); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// longLog is the largest number of log pages.
const longLog = 1 << 14

func (w *backgroundWork) measure(ctx context.Context, e *Env, res *result.Result, id nvmf.TransportID, size nvmf.Bytes) (err error) {
	w.piece = [][]byte{make([]byte, min(w.bytes, nvmf.MiB))}
	var sides [2]*partition
	for i, logPages := range []int{0, longLog} {
		p, err := w.partition(ctx, id, microfs.Segment{Start: nvmf.Bytes(i) * size, Length: size}, logPages)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.close()) }()
		sides[i] = p
	}
	var taken, stray uint64
	for round := range e.Warm + e.Rounds {
		e.progress(w.name, round, e.Warm+e.Rounds)
		for i := range 2 {
			p := sides[(round+i)%2]
			before := p.fs.StatFS().Checkpoints
			begin := time.Now()
			for step := range w.steps {
				if err := w.step(p.fs, step); err != nil {
					return err
				}
			}
			if took := time.Since(begin).Seconds(); round >= e.Warm {
				p.seconds = append(p.seconds, took)
				n := p.fs.StatFS().Checkpoints - before
				if p == sides[0] {
					taken += n
				} else {
					stray += n
				}
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	what := "state checkpoints in the background add to " + w.name
	beside := fmt.Sprintf("%d in %d checkpoints, %d with a long log; state of %s", taken, e.Rounds*w.steps, stray, sides[0].fs.StatFS().StateBytes)
	if taken == 0 {
		res.Goals = append(res.Goals, result.Goal{What: what, Limit: 0.02, AtMost: true, Unit: result.Percent, Absent: true, Why: "none was taken: more rounds are needed"})
		return nil
	}
	ratios, err := stats.Ratios(sides[0].seconds, sides[1].seconds)
	if err != nil {
		return err
	}
	for i := range ratios {
		ratios[i]--
	}
	res.Goals = append(res.Goals, result.Goal{What: what, Limit: 0.02, AtMost: true, Unit: result.Percent, Measured: result.Interval(ratios), Beside: beside})
	return nil
}

// step writes one checkpoint.
func (w *backgroundWork) step(fs *microfs.FS, k int) error {
	for i := range w.files {
		f, err := fs.Open(microfs.RootIno, fmt.Sprintf("ckpt%d.%d", k%2, i), syscall.O_RDWR|syscall.O_CREAT|syscall.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		for at := nvmf.Bytes(0); at < w.bytes && err == nil; at += nvmf.Bytes(len(w.piece[0])) {
			_, err = f.WriteAt(w.piece, int64(at))
		}
		if err == nil {
			err = f.Sync()
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
