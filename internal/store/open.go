package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"nvmecr/balancer"
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/mirror"
	"nvmecr/oplog"
)

// Options are the options of Open.
type Options struct {
	// ReadOnly opens the acknowledged state for reading. Nothing is formatted, and no ownership is needed. Errors then
	// include parttable.ErrNoTable and microfs.ErrUnformatted if nothing was written yet.
	ReadOnly bool
	// Formatted, if not nil, synchronises the ranks of a target with its formatting. The rank that formats calls it
	// once the table exists. A rank that has to wait for the table calls it too: it then returns after the call of the
	// first rank, or with an error if there will be no table. It is called on the goroutine that called Open. Without
	// it the table is polled for.
	Formatted func() error
	// OnYield is called when another process of this rank asks for the partition p. The call is on a goroutine of its own, and may come
	// before Open has returned p. OnYield closes p and returns true, or returns false. If OnYield is nil the
	// partition is kept.
	OnYield func(p *Partition) bool
	// Note is sent to other processes of this rank that ask for the partition while it is in use: they get an *owner.BusyError
	// with it.
	Note string
	// Keep are files without a name that the previous process of the partition has handed over: see microfs.Options.
	Keep []microfs.Ino
	// OnDivide is called after the singleton partition, open for writing, was shortened for the ranks of a job, on a
	// goroutine of its own. It may be nil.
	OnDivide func()
	// Logf reports progress and background events. It may be nil.
	Logf func(format string, args ...any)

	side  mirrorSide    // side of a mirrored store to read from
	drain time.Duration // for tests; 0 is the constant drain
}

// A Partition is a rank's mounted file system with its device and locks.
type Partition struct {
	FS     *microfs.FS
	Device nvmf.Device
	Target nvmf.TransportID
	Table  *parttable.Table
	Proc   Proc
	// Sweep, if not nil, is called by Grow before a rank's partition is shortened. It gets the partition, open for
	// writing, and removes data that is not needed any more. It is set before Grow is called.
	Sweep func(rank int, fs *microfs.FS) error

	changing sync.Mutex // held while the store is divided, and by Close
	closed   bool
	divided  bool

	side  nvmf.TransportID // the target that is read, with Options.side
	lock  *owner.Lock      // nil when read-only or on a device of this process alone
	once  sync.Once
	err   error         // result of Close
	ready chan struct{} // closed when Open has returned; OnYield waits for it
}

// Open mounts the partition of proc. Unless opts.ReadOnly it first becomes the partition's owner on this host, and
// formats what is unformatted. A reader from outside of the job may not know its size: then proc.Size is 0. cfg.Timeout
// limits each wait, ctx the whole call. Every error names the target, or the event that was waited for.
//
// Errors: ErrNoTarget; those of nvmf for the connection; of parttable for a namespace that is not this store's;
// *WaitError; *owner.BusyError when another process has the partition; microfs's; for a singleton
// ErrNoSingletonPartition; for other processes, when reading, ErrUndivided.
func Open(ctx context.Context, cfg *config.Config, proc Proc, opts Options) (*Partition, error) {
	if len(cfg.Targets) == 0 {
		return nil, ErrNoTarget
	}
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	o := &opener{cfg: cfg, proc: proc, opts: opts}
	if err := o.locate(); err != nil {
		return nil, err
	}
	p := &Partition{Proc: proc, ready: make(chan struct{})}
	defer close(p.ready)
	if err := o.own(ctx, p); err != nil {
		return nil, err
	}
	if err := o.open(ctx, p); err != nil {
		p.FS = nil
		return nil, andClosing(err, p.Close())
	}
	return p, nil
}

// Close unmounts, closes the device and gives up the ownership. Later calls return the result of the first.
func (p *Partition) Close() error {
	p.once.Do(func() {
		p.changing.Lock()
		defer p.changing.Unlock()
		p.closed = true
		if p.FS != nil {
			p.err = p.FS.Unmount()
		}
		if p.Device != nil {
			p.err = andClosing(p.err, p.Device.Close())
		}
		if p.lock != nil {
			p.err = andClosing(p.err, p.lock.Release())
		}
	})
	return p.err
}

// Current reports whether another Open of a partition that was opened for reading would find it unchanged, at a much
// lower cost. It is false if that is unknown.
func (p *Partition) Current() bool {
	return p.FS.Current(func(q nvmf.Queue) bool { return p.Table.Current(p.Device, q) })
}

// Attempts of a reader to mount a consistent state while a writer changes the partition, and the pause in between.
const (
	rereads     = 50
	rereadPause = 5 * time.Millisecond
)

// opener holds the arguments of one Open.
type opener struct {
	cfg     *config.Config
	proc    Proc
	opts    Options
	mapping balancer.Mapping
	reserve func(context.Context) error // see fence
	home    balancer.Device             // home of the rank; if the job size is unknown, the target to search first
}

// locate finds the rank's home. A reader from outside of the job searches the tables.
func (o *opener) locate() error {
	if o.proc.Size == 0 && o.opts.ReadOnly || o.proc.Rank == parttable.Singleton {
		return nil // the search begins with the first target
	}
	var err error
	if o.mapping, err = mapRanks(o.cfg, o.cfg.Mapping, o.proc.Size); err != nil {
		return err
	}
	home, err := o.mapping.Home(o.proc.Rank)
	if err != nil {
		return err
	}
	if len(home) > 1 {
		return fmt.Errorf("the mapping %s has copies of rank %d on %d targets, and this version keeps none: name one target for each rank: %w",
			o.cfg.Mapping, o.proc.Rank, len(home)-1, errors.ErrUnsupported)
	}
	o.home = home[0]
	return nil
}

// own makes this process the owner of the partition among the processes of this host. It does nothing for a reader,
// and on a device that only this process can use.
func (o *opener) own(ctx context.Context, p *Partition) error {
	if o.opts.ReadOnly || o.cfg.Targets[o.home.Target].Transport == nvmf.Mem {
		return nil
	}
	onYield := func() bool {
		<-p.ready // the request may come before Open has returned
		if p.FS == nil {
			return true // Open failed, and has released the lock
		}
		return o.opts.OnYield != nil && o.opts.OnYield(p)
	}
	ctx, cancel := context.WithTimeout(ctx, o.cfg.Timeout)
	defer cancel()
	rank := o.proc.Rank
	if o.proc.Singleton() {
		rank = parttable.Singleton
	}
	key := lockKey(o.cfg, rank)
	if rank == parttable.Copies { // each target has a copy area
		key = fmt.Sprintf("%s-%d", key, o.home.Target)
	}
	lock, err := owner.Acquire(ctx, LockGroup(o.cfg.Run), key, o.opts.Note, onYield)
	if p.lock = lock; lock != nil && o.proc.Singleton() {
		lock.OnDivide(func(ranks uint32, mapping string) error { return p.onDivide(o, int(ranks), mapping) })
	}
	var busy *owner.BusyError
	if errors.As(err, &busy) {
		// Users know the partition by its rank, not by the key.
		return &owner.BusyError{
			Key: fmt.Sprintf("%s of store %q", partitionName(o.proc.Rank), o.cfg.Name), PID: busy.PID, Note: busy.Note, Silent: busy.Silent,
		}
	}
	return err
}

// open mounts the partition from the namespace whose table has the rank; it tries the home first.
func (o *opener) open(ctx context.Context, p *Partition) error {
	for i := range o.cfg.Targets {
		t := (o.home.Target + i) % len(o.cfg.Targets)
		id := o.cfg.Targets[t]
		err := o.connect(ctx, p, id)
		if err != nil {
			return err
		}
		dev := p.Device
		if !o.opts.ReadOnly {
			if o.reserve, err = fence(ctx, o.cfg, dev); err != nil {
				return fmt.Errorf("target %s: %w", id, err)
			}
		}
		p.Table, err = o.table(ctx, dev, t, i == 0)
		switch entry, ok := o.entry(p.Table); {
		case i > 0 && errors.Is(err, parttable.ErrNoTable): // an unused target
		case err != nil:
			return fmt.Errorf("target %s: %w", id, err)
		case ok:
			err := o.mount(ctx, p, entry)
			if err == nil && !o.opts.ReadOnly && (o.proc.Singleton() && p.Table.JobSize == 1 || o.cfg.View == config.ViewJob) {
				err = o.remount(ctx, p, entry)
			}
			if err != nil {
				return fmt.Errorf("target %s: %w", id, withRemedy(err, p.Table.JobSize))
			}
			return nil
		case o.proc.Singleton() && p.Table.JobSize != 1:
			return fmt.Errorf("store %q: %w", o.cfg.Name, ErrNoSingletonPartition)
		}
		// The store was formatted with another mapping.
		p.Device = nil
		if err := dev.Close(); err != nil {
			return fmt.Errorf("target %s: %w", id, err)
		}
	}
	return fmt.Errorf("store %q: no target has a partition of rank %d", o.cfg.Name, o.proc.Rank)
}

// connect opens target id for the partition.
func (o *opener) connect(ctx context.Context, p *Partition, id nvmf.TransportID) (err error) {
	p.Target = id
	if p.Device, err = connect(ctx, o.cfg, id, o.opts.ReadOnly); err != nil {
		return err
	}
	if o.opts.side != eitherSide {
		p.side, err = readFrom(o.cfg, p.Device, id, o.opts.side)
	}
	return err
}

// remount mounts the partition again if a process on another host has shortened it since the table was read, to
// divide the store or to create partitions. That cannot happen after the first mount, whose claim excludes other
// processes.
func (o *opener) remount(ctx context.Context, p *Partition, mounted parttable.Entry) error {
	table, err := readTable(ctx, o.cfg, p.Device)
	if err != nil {
		return err
	}
	entry, ok := o.entry(table)
	if ok && entry.Length == mounted.Length {
		return nil
	}
	if err := p.FS.Unmount(); err != nil {
		return err
	}
	p.FS, p.Table = nil, table
	if !ok {
		return ErrNoSingletonPartition
	}
	return o.mount(ctx, p, entry)
}

// entry returns the partition of the process in table, which may be nil.
func (o *opener) entry(table *parttable.Table) (parttable.Entry, bool) {
	if table == nil {
		return parttable.Entry{}, false
	}
	if o.proc.Singleton() {
		return table.SingletonEntry()
	}
	return table.Entry(o.proc.Rank)
}

// withRemedy adds the remedy to the error of a partition that cannot be mounted, in a store of a job of size ranks.
func withRemedy(err error, size int) error {
	fresh := "start over with --fresh"
	if size > 1 {
		fresh = "copy out what the other ranks hold (nvmecr cp), then " + fresh
	}
	switch {
	case errors.Is(err, microfs.ErrVersion), errors.Is(err, oplog.ErrFormat):
		return fmt.Errorf("%w; use the version of nvmecr that wrote it, or %s", err, fresh)
	case microfs.MovedOn(err):
		return fmt.Errorf("%w; this rank's partition holds nothing that can be trusted: %s", err, fresh)
	}
	return err
}

// table returns the checked table of target t. If the home target has none for these ranks, it is formatted, divided
// among the ranks, or waited for.
func (o *opener) table(ctx context.Context, dev nvmf.Device, t int, atHome bool) (*parttable.Table, error) {
	table, err := readTable(ctx, o.cfg, dev)
	if err == nil {
		err = table.Check(o.want(t, 0))
	}
	if err == nil && table.Empty() && o.proc.Rank != parttable.Copies {
		err = ErrOnlyCopies
	}
	if undivided := err == nil && o.undivided(table); atHome && (undivided || errors.Is(err, parttable.ErrNoTable)) {
		switch {
		case o.opts.ReadOnly && undivided:
			err = ErrUndivided
		case o.opts.ReadOnly:
		case o.formats(dev):
			table, err = o.makeTable(ctx, dev, t)
		default:
			table, err = o.await(ctx, dev, t)
		}
	}
	if err == nil && atHome && o.opts.Formatted != nil && o.formats(dev) {
		err = o.opts.Formatted()
	}
	if err != nil { // do not notify waiting ranks: the caller may try again
		return nil, err
	}
	if err := table.Check(o.want(t, o.ranks())); err != nil {
		return nil, err
	}
	// Only one process repairs, so that no two write the same slot.
	entry, _ := o.entry(table)
	if entry.Rank == table.Keeper() && !o.opts.ReadOnly {
		wait, cancel := context.WithTimeout(ctx, o.cfg.Timeout)
		defer cancel()
		if repaired, err := parttable.Repair(wait, dev); err != nil {
			return nil, err
		} else if repaired {
			o.opts.Logf("target %s: a damaged copy of the partition table was repaired", o.cfg.Targets[t])
		}
	}
	return table, nil
}

// formats reports whether this process formats its target if that is unformatted.
func (o *opener) formats(dev nvmf.Device) bool { return o.home.Slot == 0 || dev.Identity().Private }

// ranks returns the required number of ranks of the store; 0 is any number. A singleton can use a store of any number
// of ranks. A store with one tree has partitions for any number of ranks.
func (o *opener) ranks() int {
	if o.proc.Singleton() || o.cfg.View == config.ViewJob {
		return 0
	}
	return o.proc.Size
}

// want returns the requirements for the table of target t, for that number of ranks; 0 is any number.
func (o *opener) want(t, size int) parttable.Want {
	w := want(o.cfg, t, len(o.cfg.Targets), size)
	w.ReadOnly, w.Tree = o.opts.ReadOnly, tree(o.cfg)
	w.AnyUser = o.opts.ReadOnly && os.Geteuid() == 0
	return w
}

// undivided reports whether the singleton partition is all of the store while this process is one of several ranks.
func (o *opener) undivided(table *parttable.Table) bool {
	return table.JobSize == 1 && !o.proc.Singleton() && o.proc.Size != 0
}

// mount mounts the partition, and formats it before its first use. In a mirrored store both sides are equal afterwards,
// whatever a crash has left.
func (o *opener) mount(ctx context.Context, p *Partition, entry parttable.Entry) error {
	err := o.mountSide(ctx, p, entry)
	if m, ok := p.Device.(*mirror.Device); ok && err == nil && !o.opts.ReadOnly {
		m.Heal(false)
		if err = equaliseSuperblocks(ctx, m, entry); err != nil {
			err = andClosing(err, p.FS.Unmount())
			p.FS = nil
		}
	}
	return err
}

// mountSide is mount, except for differences between the sides of a mirror.
func (o *opener) mountSide(ctx context.Context, p *Partition, entry parttable.Entry) (err error) {
	seg := microfs.Segment{Start: entry.Start, Length: entry.Length}
	mo, err := o.mountOptions(p)
	if err != nil {
		return err
	}
	p.FS, err = microfs.Mount(ctx, p.Device, seg, mo)
	for i := 0; o.opts.ReadOnly && microfs.MovedOn(err) && i < rereads && ctx.Err() == nil; i++ {
		time.Sleep(rereadPause)
		p.FS, err = microfs.Mount(ctx, p.Device, seg, mo)
	}
	if !errors.Is(err, microfs.ErrUnformatted) || o.opts.ReadOnly {
		return err
	}
	// Settings that all partitions share come from the table.
	if h := p.Table.Hugeblock; h != o.cfg.Hugeblock {
		o.opts.Logf("the store has hugeblocks of %s", h)
	}
	err = microfs.Format(ctx, p.Device, seg, microfs.FormatOptions{
		Generation: p.Table.Generation,
		Rank:       max(o.proc.Rank, 0),
		Size:       max(o.proc.Size, 1),
		Hugeblock:  p.Table.Hugeblock,
		NoDataCRC:  !o.cfg.DataChecksum,
		Ranges:     o.cfg.View == config.ViewJob && o.proc.Singleton(),
		Cred:       mo.Cred,
	})
	if err != nil {
		return halfFormatted(err)
	}
	p.FS, err = microfs.Mount(ctx, p.Device, seg, mo)
	return err
}

// mountOptions returns the options of every mount of p.
func (o *opener) mountOptions(p *Partition) (microfs.Options, error) {
	cred, err := Cred()
	mo := microfs.Options{
		Generation: p.Table.Generation,
		ReadOnly:   o.opts.ReadOnly,
		Cred:       cred,
		MountPoint: o.cfg.Mount,
		Timeout:    o.cfg.Timeout,
		Logf:       o.opts.Logf,
	}
	if !o.opts.ReadOnly {
		mo.WriteBehind = o.cfg.Durability == config.DurableClose
		mo.Holder = self(o.cfg.Run)
		mo.Claimed = synchronising(p.Device, o.mayTakeOver(mo.Holder, o.reserve != nil, p.Target.Transport == nvmf.File))
		mo.Reserve = o.reserve
		mo.Keep = o.opts.Keep
	}
	return mo, err
}

// Cred returns the credentials of this process for permission checks.
func Cred() (microfs.Cred, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return microfs.Cred{}, fmt.Errorf("groups of this process: %w", err)
	}
	c := microfs.Cred{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	for _, g := range groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c, nil
}
