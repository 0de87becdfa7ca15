package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// A View is the partition of a rank as another process reads it.
type View struct {
	Rank int
	FS   *microfs.FS
	// Mount differs between two mounts of the same partition: what the older one shows
	// may have been overwritten.
	Mount uint64
}

// Views are the partitions of all ranks of a store as a process sees them that is none of
// the ranks. They are mounted when somebody looks, and again when they have changed. All mounts on a
// target share one connection. All methods are safe for concurrent use.
type Views struct {
	cfg  *config.Config
	logf func(format string, args ...any)

	mu      sync.Mutex
	targets []*viewed
	views   []View
	mounts  uint64
	looked  time.Time
	fresh   time.Duration
	told    map[int]bool // ranks whose partition cannot be read
}

// NewViews returns the views of the store that cfg names. Nothing is opened yet. logf tells what
// cannot be read; it may be nil.
func NewViews(cfg *config.Config, logf func(format string, args ...any)) *Views {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	return &Views{cfg: cfg, logf: logf, told: map[int]bool{}}
}

// viewed is a target, and its views by rank.
type viewed struct {
	dev   *sharedDevice
	q     nvmf.Queue
	table *parttable.Table
	views map[int]View
}

// leastFresh is how long what Look has found is good for, at least; where looking takes
// long it is half of that time.
const leastFresh = 2 * time.Millisecond

// Look returns the views of all ranks that have written, in their order, as they are now or
// were a moment ago. A partition that cannot be read is left out, and told of once. The
// error is about a target as a whole.
func (v *Views) Look(ctx context.Context) ([]View, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	begin := time.Now()
	if begin.Sub(v.looked) < v.fresh {
		return v.views, nil
	}
	byRank, size := map[int]View{}, 0
	for t := range v.cfg.Targets {
		target, err := v.target(ctx, t)
		if err == nil {
			err = v.look(ctx, target)
		}
		if err != nil {
			return nil, fmt.Errorf("looking at what the ranks have written: target %s: %w", v.cfg.Targets[t], err)
		}
		if target.table != nil {
			size = max(size, target.table.JobSize)
		}
		for rank, view := range target.views {
			byRank[rank] = view
		}
	}
	v.views = nil
	for rank := range size {
		if view, ok := byRank[rank]; ok {
			v.views = append(v.views, view)
		}
	}
	v.looked = time.Now()
	v.fresh = max(leastFresh, v.looked.Sub(begin)/2)
	return v.views, nil
}

// target returns target t, connecting to it at first.
func (v *Views) target(ctx context.Context, t int) (*viewed, error) {
	if t < len(v.targets) {
		return v.targets[t], nil
	}
	dev, err := connect(ctx, v.cfg, v.cfg.Targets[t], true)
	if err != nil {
		return nil, err
	}
	shared, err := share(ctx, dev)
	if err != nil {
		return nil, andClosing(err, dev.Close())
	}
	q, err := shared.OpenQueue(ctx, 0)
	if err != nil {
		return nil, andClosing(err, shared.Close())
	}
	target := &viewed{dev: shared, q: q, views: map[int]View{}}
	v.targets = append(v.targets, target)
	return target, nil
}

// look makes the views of a target what they would be if all were mounted now.
func (v *Views) look(ctx context.Context, t *viewed) error {
	if t.table == nil || !t.table.Current(t.dev, t.q) {
		table, err := readTable(ctx, v.cfg, t.dev)
		if errors.Is(err, parttable.ErrNoTable) {
			t.table, t.views = nil, map[int]View{}
			return nil
		}
		if err == nil {
			w := want(v.cfg, 0, 0, 0)
			w.ReadOnly = true
			err = table.Check(w)
		}
		if err != nil {
			return err
		}
		if t.table != nil && t.table.Generation != table.Generation {
			t.views = map[int]View{}
		}
		t.table = table
	}
	if t.table.JobSize == 1 { // that is the solo partition
		return nil
	}
	for _, e := range t.table.Entries {
		if e.Rank == parttable.Solo {
			continue
		}
		if view, ok := t.views[e.Rank]; ok && view.FS.Current(func(nvmf.Queue) bool { return true }) {
			continue
		}
		if err := v.mount(ctx, t, e); err != nil {
			return err
		}
	}
	return nil
}

// mount mounts a partition. One that leaves no quiet moment stays what it was.
func (v *Views) mount(ctx context.Context, t *viewed, e parttable.Entry) error {
	o := &opener{cfg: v.cfg, place: Place{Rank: e.Rank, Size: t.table.JobSize}, opts: Options{ReadOnly: true, Logf: func(string, ...any) {}}}
	p := &Partition{Device: t.dev, Table: t.table, Place: o.place}
	err := o.mount(ctx, p, e)
	switch {
	case errors.Is(err, microfs.ErrUnformatted):
		return nil
	case errors.Is(err, nvmf.ErrConnectionLost), errors.Is(err, nvmf.ErrUnreachable):
		return err
	case err != nil:
		if _, ok := t.views[e.Rank]; !ok && !v.told[e.Rank] {
			v.told[e.Rank] = true
			v.logf("what rank %d has written is not shown: %v", e.Rank, err)
		}
		return nil
	}
	v.mounts++
	t.views[e.Rank] = View{Rank: e.Rank, FS: p.FS, Mount: v.mounts}
	return nil
}

// sharedDevice is a device with one queue for all: partitions that are only read
// need no connection each.
type sharedDevice struct {
	nvmf.Device
	mu sync.Mutex
	q  nvmf.Queue
}

// sharedDepth is how many commands its queue keeps in flight.
const sharedDepth = 32

func share(ctx context.Context, dev nvmf.Device) (*sharedDevice, error) {
	q, err := dev.OpenQueue(ctx, sharedDepth)
	return &sharedDevice{Device: dev, q: q}, err
}

// OpenQueue returns a queue that takes turns with all others of the device.
func (d *sharedDevice) OpenQueue(context.Context, int) (nvmf.Queue, error) {
	return sharedQueue{d}, nil
}

// Close closes the queue and the device.
func (d *sharedDevice) Close() error { return andClosing(d.q.Close(), d.Device.Close()) }

// sharedQueue completes what is submitted at once.
type sharedQueue struct{ d *sharedDevice }

func (q sharedQueue) Submit(cmds []*nvmf.Command) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	q.d.q.Submit(cmds)
	_ = q.d.q.Wait(cmds) // each has its own error
}

func (q sharedQueue) Wait(cmds []*nvmf.Command) error { return nvmf.FirstError(cmds) }

func (q sharedQueue) Reset(ctx context.Context) error {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	return q.d.q.Reset(ctx)
}

func (q sharedQueue) Close() error { return nil }
