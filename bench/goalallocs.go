package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"nvmecr/bench/result"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
	"nvmecr/posixshim"
)

// allocationsAllowed is the number of allocations for each call that counts as none,
// since other parts of the process may allocate during a thousand calls.
const allocationsAllowed = 0.05

// allocations measures the allocations of calls on the data path. They are counted in
// this process, since a rank cannot count them. The calls go through all layers of
// nvmecr except the C library: POSIX, the file system, the initiator, and a target in
// another process.
func (g *goalRun) allocations(ctx context.Context) (err error) {
	const length = 256 * nvmf.MiB
	e := g.with(1)
	t, err := e.startTarget(ctx, fmt.Sprintf("mem:%d", uint64(length)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	dev, err := dial.Open(ctx, t.ids[0], dial.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	seg := microfs.Segment{Length: length}
	if err := microfs.Format(ctx, dev, seg, microfs.FormatOptions{Generation: 1, Size: 1}); err != nil {
		return err
	}
	runtime.LockOSThread() // the queue polls on this thread
	defer runtime.UnlockOSThread()
	p := posixshim.New(func(bool) (*vfs.Mount, error) {
		fs, err := microfs.Mount(ctx, dev, seg, microfs.Options{Generation: 1})
		if err != nil {
			return nil, err
		}
		return &vfs.Mount{FS: vfs.Microfs(fs), Writable: true, Close: fs.Unmount}, nil
	}, func(string, ...any) {})
	defer func() { err = errors.Join(err, p.Finish()) }()
	for _, size := range []nvmf.Bytes{4 * nvmf.KiB, nvmf.MiB} {
		if err := g.allocationsOf(p, size); err != nil {
			return err
		}
	}
	return nil
}

// allocationsOf counts the allocations of an overwrite, an fsync and a read of one size, taken
// together.
func (g *goalRun) allocationsOf(p *posixshim.Process, size nvmf.Bytes) error {
	const pieces, calls = 32, 1000
	fd, err := p.Open(posixshim.PathAt{Path: size.String()}, syscall.O_RDWR|syscall.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	h, buf := posixshim.Handle(fd), make([]byte, size)
	turn := func(i int) error {
		at := int64(i%pieces) * int64(size)
		if _, err := p.Pwrite(h, buf, at, posixshim.NoLimit); err != nil {
			return err
		}
		if err := p.Fsync(h); err != nil {
			return err
		}
		_, err := p.Pread(h, buf, at)
		return err
	}
	var before, after runtime.MemStats
	for i := range calls + 2*pieces {
		if i == 2*pieces { // every piece was written before
			runtime.ReadMemStats(&before)
		}
		if err := turn(i); err != nil {
			return err
		}
	}
	runtime.ReadMemStats(&after)
	g.add(result.Goal{
		What: fmt.Sprintf("allocations of an overwrite, an fsync and a read of %s", size), Limit: allocationsAllowed, AtMost: true, Unit: result.Plain,
		Measured: result.Exactly(float64(after.Mallocs-before.Mallocs) / calls),
		Beside:   fmt.Sprintf("%d in %d turns", after.Mallocs-before.Mallocs, calls),
	})
	return p.Release(h)
}
