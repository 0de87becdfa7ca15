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

// A View is the partition of a rank, mounted by another process for reading.
type View struct {
	Rank int
	FS   *microfs.FS
	// Mount differs between two mounts of the same partition: data that the older one shows may have been overwritten.
	Mount uint64

	refreshed time.Time // FS has all data that was acknowledged before
}

// Views are the partitions of all ranks of a store, for a process that is none of the ranks. A partition is mounted at
// the first access, and again after a change. All mounts on a target share one connection. All methods are safe for
// concurrent use.
type Views struct {
	cfg  *config.Config
	logf func(format string, args ...any)

	mu        sync.Mutex
	targets   []*viewed // nil until the first access
	silent    map[int]silence
	views     []View
	mounts    uint64
	refreshed time.Time
	fresh     time.Duration
	told      map[int]bool // ranks whose partition cannot be read
}

// NewViews returns the views of the store that cfg names. It opens nothing. logf gets messages about partitions that
// cannot be read; it may be nil.
func NewViews(cfg *config.Config, logf func(format string, args ...any)) *Views {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	return &Views{cfg: cfg, logf: logf, told: map[int]bool{}, silent: map[int]silence{}}
}

// A silence records that a target did not answer in time.
type silence struct {
	err   error
	until time.Time
}

// viewed is a target with its views by rank.
type viewed struct {
	dev   *sharedDevice
	q     nvmf.Queue
	table *parttable.Table
	views map[int]View
}

// minFresh is the least time for which a result of Refresh is used again; if a refresh takes long, the time is half of
// its duration.
const minFresh = 2 * time.Millisecond

// Refresh returns the views of all ranks that have written, in order of ranks, as they are now or were a moment ago. A
// partition that cannot be read is left out, with one message. The error is about a target as a whole.
func (v *Views) Refresh(ctx context.Context) ([]View, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lookAll(ctx)
}

// lookAll is Refresh for a caller that holds v.mu.
func (v *Views) lookAll(ctx context.Context) ([]View, error) {
	begin := time.Now()
	if begin.Sub(v.refreshed) < v.fresh {
		return v.views, nil
	}
	byRank, size := map[int]View{}, 0
	for t := range v.cfg.Targets {
		target, err := v.target(ctx, t)
		if err == nil {
			err = v.refresh(ctx, target)
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
	v.refreshed = time.Now()
	v.fresh = max(minFresh, v.refreshed.Sub(begin)/2)
	return v.views, nil
}

// Rank returns the file system of one rank, or of singletons for parttable.Singleton, with all data that was
// acknowledged before since. It waits for a target that does not answer, or is lost meanwhile, up to the time-out of
// the run. After a time-out the next calls fail at once for as long again, so that a caller that asks for many files
// does not wait for each. Errors: microfs.ErrUnformatted if the rank has written nothing; those of microfs.Mount; of
// the target.
func (v *Views) Rank(ctx context.Context, rank int, since time.Time) (*microfs.FS, error) {
	for begin := time.Now(); ; {
		fs, t, err := v.find(ctx, rank, since)
		if !Unavailable(err) || t < 0 {
			return fs, err
		}
		if time.Since(begin)+lostPause > v.cfg.Timeout {
			return nil, v.givenUp(t, err)
		}
		if err := sleep(ctx, lostPause); err != nil {
			return nil, err
		}
	}
}

// givenUp records that a target did not answer in time.
func (v *Views) givenUp(t int, err error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.silent[t] = silence{err, time.Now().Add(v.cfg.Timeout)}
	return err
}

// find searches the partition of a rank on all targets, the likeliest first. It returns the target at which the
// search ended; -1 if an earlier wait for that target ended with a time-out.
func (v *Views) find(ctx context.Context, rank int, since time.Time) (fs *microfs.FS, t int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	home := 0
	if m, err := mapRanks(v.cfg, v.cfg.Mapping, rank+1); rank != parttable.Singleton && err == nil {
		if h, err := m.Home(rank); err == nil {
			home = h[0].Target
		}
	}
	for i := range v.cfg.Targets {
		t = (home + i) % len(v.cfg.Targets)
		if s := v.silent[t]; time.Now().Before(s.until) {
			return nil, -1, s.err
		}
		fs, err := v.rank(ctx, t, rank, since)
		if errors.Is(err, nvmf.ErrConnectionLost) {
			err = v.reset(ctx, t, err)
		}
		if err != nil {
			return nil, t, fmt.Errorf("target %s: %w", v.cfg.Targets[t], err)
		}
		if fs != nil {
			return fs, t, nil
		}
	}
	return nil, t, fmt.Errorf("%s: %w", partitionName(rank), microfs.ErrUnformatted)
}

// reset connects to a target again after the error cause, which it returns. The caller has to search again.
func (v *Views) reset(ctx context.Context, t int, cause error) error {
	target := v.targets[t]
	if target == nil {
		return cause
	}
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	if err := target.q.Reset(ctx); err != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return cause
}

// rank is Rank on one target. It returns nil if the target has no partition of the rank.
func (v *Views) rank(ctx context.Context, t, rank int, since time.Time) (*microfs.FS, error) {
	target, err := v.target(ctx, t)
	if err != nil {
		return nil, err
	}
	view, ok := target.views[rank]
	if ok && view.refreshed.After(since) {
		return view.FS, nil
	}
	now := time.Now()
	if ok && view.FS.Current(func(nvmf.Queue) bool { return true }) {
		view.refreshed = now
		target.views[rank] = view
		return view.FS, nil
	}
	if err := v.readTable(ctx, target); err != nil || target.table == nil {
		return nil, err
	}
	entry, ok := target.table.Entry(rank)
	if rank == parttable.Singleton {
		entry, ok = target.table.SingletonEntry()
	}
	if !ok {
		return nil, nil
	}
	view, err = v.open(ctx, target, entry)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", partitionName(rank), err)
	}
	view.refreshed = now
	target.views[rank] = view
	return view.FS, nil
}

// Space returns the capacity of the partitions of all ranks for file data, and how much of it is free, according to
// Refresh. A partition that was never written counts as free, one that cannot be read as full.
func (v *Views) Space(ctx context.Context) (total, free nvmf.Bytes, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, err := v.lookAll(ctx); err != nil {
		return 0, 0, err
	}
	for _, t := range v.targets {
		if t.table == nil || t.table.JobSize == 1 {
			continue
		}
		for _, e := range t.table.Entries {
			if e.Rank == parttable.Singleton {
				continue
			}
			has, left := e.Length, e.Length
			if view, ok := t.views[e.Rank]; ok {
				s := view.FS.StatFS()
				has, left = nvmf.Bytes(s.Blocks)*s.Hugeblock, nvmf.Bytes(s.Free)*s.Hugeblock
			} else if v.told[e.Rank] {
				left = 0
			}
			total, free = total+has, free+left
		}
	}
	return total, free, nil
}

// Forget makes the next Refresh read the store again, also if the last one was a moment ago.
func (v *Views) Forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refreshed = time.Time{}
}

// Close closes the connections to the targets. The results of Refresh and Rank cannot be read any more.
func (v *Views) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, t := range v.targets {
		if t != nil {
			_ = t.dev.Close() // nothing was written
		}
	}
	v.targets, v.views, v.refreshed = nil, nil, time.Time{}
}

// target returns target t. The first call connects to it.
func (v *Views) target(ctx context.Context, t int) (*viewed, error) {
	if v.targets == nil {
		v.targets = make([]*viewed, len(v.cfg.Targets))
	}
	if v.targets[t] != nil {
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
	v.targets[t] = &viewed{dev: shared, q: q, views: map[int]View{}}
	return v.targets[t], nil
}

// readTable reads the table of a target again if it has changed. The table of an unformatted target is nil.
func (v *Views) readTable(ctx context.Context, t *viewed) error {
	if t.table != nil && t.table.Current(t.dev, t.q) {
		return nil
	}
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
	return nil
}

// refresh updates the views of a target to the current state, as if all were mounted now.
func (v *Views) refresh(ctx context.Context, t *viewed) error {
	if err := v.readTable(ctx, t); err != nil {
		return err
	}
	if t.table == nil || t.table.JobSize == 1 { // the only partition is the singleton partition
		return nil
	}
	for _, e := range t.table.Entries {
		if e.Rank == parttable.Singleton {
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

// mount mounts a partition. If its writer leaves no consistent state in time, the previous view is kept.
func (v *Views) mount(ctx context.Context, t *viewed, e parttable.Entry) error {
	view, err := v.open(ctx, t, e)
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
	t.views[e.Rank] = view
	return nil
}

func (v *Views) open(ctx context.Context, t *viewed, e parttable.Entry) (View, error) {
	o := &opener{cfg: v.cfg, proc: Proc{Rank: e.Rank, Size: t.table.JobSize}, opts: Options{ReadOnly: true, Logf: func(string, ...any) {}}}
	p := &Partition{Device: t.dev, Table: t.table, Proc: o.proc}
	if err := o.mount(ctx, p, e); err != nil {
		return View{}, err
	}
	v.mounts++
	return View{Rank: e.Rank, FS: p.FS, Mount: v.mounts}, nil
}

// sharedDevice is a device with one queue for all users, so that partitions which are only read do not need a
// connection each.
type sharedDevice struct {
	nvmf.Device
	mu sync.Mutex
	q  nvmf.Queue
}

// sharedDepth is the number of commands that its queue keeps in flight.
const sharedDepth = 32

func share(ctx context.Context, dev nvmf.Device) (*sharedDevice, error) {
	q, err := dev.OpenQueue(ctx, sharedDepth)
	return &sharedDevice{Device: dev, q: q}, err
}

// OpenQueue returns a queue that passes its commands to the queue of the device.
func (d *sharedDevice) OpenQueue(context.Context, int) (nvmf.Queue, error) {
	return sharedQueue{d}, nil
}

// Close closes the queue and the device.
func (d *sharedDevice) Close() error { return andClosing(d.q.Close(), d.Device.Close()) }

// sharedQueue passes the commands of several users to one queue. A user that waits for its commands also completes those of others.
type sharedQueue struct{ d *sharedDevice }

// Submit starts commands; see nvmf.Queue. A queue of mirrors completes them at once: a wait for reads costs it a look at the other side, so
// it is to have one for all commands.
func (q sharedQueue) Submit(cmds []*nvmf.Command) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	q.d.q.Submit(cmds)
	if _, ok := q.d.q.(nvmf.MirroredQueue); ok {
		_ = q.d.q.Wait(cmds) // each command has its own error
	}
}

func (q sharedQueue) Wait(cmds []*nvmf.Command) error {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	return q.d.q.Wait(cmds)
}

// ReadOther reads from the other side of a mirror; see nvmf.MirroredQueue.
func (q sharedQueue) ReadOther(c *nvmf.Command) error {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if m, ok := q.d.q.(nvmf.MirroredQueue); ok {
		return m.ReadOther(c)
	}
	return nvmf.ErrUnsupported
}

func (q sharedQueue) Reset(ctx context.Context) error {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	return q.d.q.Reset(ctx)
}

func (q sharedQueue) Close() error { return nil }
