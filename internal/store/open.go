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
	"nvmecr/oplog"
)

// Options say how a partition is opened.
type Options struct {
	// ReadOnly opens for reading what is acknowledged. Nothing is formatted
	// and no ownership is needed. Errors then include parttable.ErrNoTable and
	// microfs.ErrUnformatted where nobody has written yet.
	ReadOnly bool
	// Formatted, if not nil, is how the ranks of a target hear that it is formatted. The rank that
	// formats it calls Formatted once there is a table. One that has to wait for the table calls it too; for
	// that one it returns when the other has called it, or with an error when there will be no
	// table. It is called on the goroutine that called Open. Without it the table is polled for.
	Formatted func() error
	// OnYield is called when another process of this rank asks for the
	// partition p, on a goroutine of its own, perhaps before the caller of
	// Open has seen p. It closes p and returns true, or returns false.
	// nil refuses.
	OnYield func(p *Partition) bool
	// Note is for the other processes of this rank that ask while the
	// partition is in use: their error is an *owner.BusyError with it.
	Note string
	// Keep are files without a name that the process which had the partition last has handed over:
	// see microfs.Options.
	Keep []microfs.Ino
	// OnDivide is called when the solo partition that was opened for writing has been made
	// shorter for the ranks of a job, on a goroutine of its own. May be nil.
	OnDivide func()
	// Logf reports progress and background events. May be nil.
	Logf func(format string, args ...any)

	drain time.Duration // tests need not wait that long; 0 is drain
}

// A Partition is a rank's mounted file system and what it stands on.
type Partition struct {
	FS     *microfs.FS
	Device nvmf.Device
	Target nvmf.TransportID
	Table  *parttable.Table
	Place  Place
	// Sweep, if not nil, is called by Grow with a rank's partition, open for writing, that is about to be made shorter: it removes what
	// nobody needs there. It is set before.
	Sweep func(rank int, fs *microfs.FS) error

	changing sync.Mutex // held while the store is divided, and by Close
	closed   bool
	divided  bool

	lock  *owner.Lock // nil when read-only or on a device nobody else can see
	once  sync.Once
	err   error         // of Close
	ready chan struct{} // closed when Open has returned; OnYield waits for it
}

// Open mounts the partition of place. Unless opts.ReadOnly it first becomes
// the partition's owner on this host and formats what is not formatted. For a
// reader from outside, who knows no job, place.Size may be 0. cfg.Timeout
// bounds each wait, ctx all of it. Every error names the target, or says what
// it waited for.
//
// Errors: ErrNoTarget; those of nvmf for the connection; of parttable for a
// namespace that is not this store's; *WaitError; *owner.BusyError when
// another process has the partition; microfs's; for a place that is alone ErrNoSolo, for others,
// when reading, ErrUndivided.
func Open(ctx context.Context, cfg *config.Config, place Place, opts Options) (*Partition, error) {
	if len(cfg.Targets) == 0 {
		return nil, ErrNoTarget
	}
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	o := &opener{cfg: cfg, place: place, opts: opts}
	if err := o.locate(); err != nil {
		return nil, err
	}
	p := &Partition{Place: place, ready: make(chan struct{})}
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

// Close unmounts, closes the device and gives up the ownership. Calls after
// the first return what the first returned.
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

// Current reports whether a partition that was opened for reading would be found
// the same by another Open, at much less cost. It is false where that cannot be
// told.
func (p *Partition) Current() bool {
	return p.FS.Current(func(q nvmf.Queue) bool { return p.Table.Current(p.Device, q) })
}

// A reader beside a writer looks this often for a quiet moment, and pauses so
// long in between.
const (
	rereads     = 50
	rereadPause = 5 * time.Millisecond
)

// opener holds the arguments of one Open.
type opener struct {
	cfg     *config.Config
	place   Place
	opts    Options
	mapping balancer.Mapping
	reserve func(context.Context) error // see fence
	home    balancer.Device             // the rank's, or where the search begins when the job's size is not known
}

// locate finds the rank's home. A reader from outside knows no job and asks
// the tables.
func (o *opener) locate() error {
	if o.place.Size == 0 && o.opts.ReadOnly || o.place.Rank == parttable.Solo {
		return nil // the first target
	}
	var err error
	if o.mapping, err = mapRanks(o.cfg, o.cfg.Mapping, o.place.Size); err != nil {
		return err
	}
	home, err := o.mapping.Home(o.place.Rank)
	if err != nil {
		return err
	}
	if len(home) > 1 {
		return fmt.Errorf("the mapping %s has copies of rank %d on %d targets, and this version keeps none: name one target for each rank: %w",
			o.cfg.Mapping, o.place.Rank, len(home)-1, errors.ErrUnsupported)
	}
	o.home = home[0]
	return nil
}

// own makes this process the owner of the partition among those of this host,
// if it is going to write and anybody else could.
func (o *opener) own(ctx context.Context, p *Partition) error {
	if o.opts.ReadOnly || o.cfg.Targets[o.home.Target].Transport == nvmf.Mem {
		return nil
	}
	onYield := func() bool {
		<-p.ready // the question may come before Open has returned
		if p.FS == nil {
			return true // it failed, and gave up the lock
		}
		return o.opts.OnYield != nil && o.opts.OnYield(p)
	}
	ctx, cancel := context.WithTimeout(ctx, o.cfg.Timeout)
	defer cancel()
	rank := o.place.Rank
	if o.place.Alone() {
		rank = parttable.Solo
	}
	key := lockKey(o.cfg, rank)
	if rank == parttable.Copies { // each target has one
		key = fmt.Sprintf("%s-%d", key, o.home.Target)
	}
	lock, err := owner.Acquire(ctx, LockGroup(o.cfg.Run), key, o.opts.Note, onYield)
	if p.lock = lock; lock != nil && o.place.Alone() {
		lock.OnDivide(func(ranks uint32, mapping string) error { return p.onDivide(o, int(ranks), mapping) })
	}
	var busy *owner.BusyError
	if errors.As(err, &busy) {
		// The key is for the machine.
		return &owner.BusyError{
			Key: fmt.Sprintf("%s of store %q", partitionName(o.place.Rank), o.cfg.Name), PID: busy.PID, Note: busy.Note, Silent: busy.Silent,
		}
	}
	return err
}

// open finds the namespace whose table has the rank, first its home, and mounts.
func (o *opener) open(ctx context.Context, p *Partition) error {
	for i := range o.cfg.Targets {
		t := (o.home.Target + i) % len(o.cfg.Targets)
		id := o.cfg.Targets[t]
		dev, err := connect(ctx, o.cfg, id, o.opts.ReadOnly)
		if err != nil {
			return err
		}
		p.Device, p.Target = dev, id
		if !o.opts.ReadOnly {
			if o.reserve, err = fence(ctx, o.cfg, dev); err != nil {
				return fmt.Errorf("target %s: %w", id, err)
			}
		}
		p.Table, err = o.table(ctx, dev, t, i == 0)
		switch entry, ok := o.entry(p.Table); {
		case i > 0 && errors.Is(err, parttable.ErrNoTable): // a target that is not used
		case err != nil:
			return fmt.Errorf("target %s: %w", id, err)
		case ok:
			err := o.mount(ctx, p, entry)
			if err == nil && !o.opts.ReadOnly && (o.place.Alone() && p.Table.JobSize == 1 || o.cfg.View == config.ViewJob) {
				err = o.remount(ctx, p, entry)
			}
			if err != nil {
				return fmt.Errorf("target %s: %w", id, withRemedy(err, p.Table.JobSize))
			}
			return nil
		case o.place.Alone() && p.Table.JobSize != 1:
			return fmt.Errorf("store %q: %w", o.cfg.Name, ErrNoSolo)
		}
		// Another mapping put it elsewhere.
		p.Device = nil
		if err := dev.Close(); err != nil {
			return fmt.Errorf("target %s: %w", id, err)
		}
	}
	return fmt.Errorf("store %q: no target has a partition of rank %d", o.cfg.Name, o.place.Rank)
}

// remount mounts the partition again if a process on another host has made it shorter, to divide the store or to make more
// partitions, since the table was read. After the first mount none does: the claim keeps it away.
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
		return ErrNoSolo
	}
	return o.mount(ctx, p, entry)
}

// entry returns the partition in table that is the place's; a table may be missing.
func (o *opener) entry(table *parttable.Table) (parttable.Entry, bool) {
	if table == nil {
		return parttable.Entry{}, false
	}
	if o.place.Alone() {
		return table.SoloEntry()
	}
	return table.Entry(o.place.Rank)
}

// withRemedy says what can be done about media of a job of size ranks that does
// not mount.
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

// table returns the checked table of target number t. At home it is formatted, divided
// among the ranks, or waited for, when there is none for them.
func (o *opener) table(ctx context.Context, dev nvmf.Device, t int, atHome bool) (*parttable.Table, error) {
	table, err := readTable(ctx, o.cfg, dev)
	if err == nil {
		err = table.Check(o.want(t, 0))
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
	if err != nil { // not told to those who wait: the caller may try again
		return nil, err
	}
	if err := table.Check(o.want(t, o.ranks())); err != nil {
		return nil, err
	}
	// One process repairs, so that no two write the same slot.
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

// formats reports whether this process formats its target if need be.
func (o *opener) formats(dev nvmf.Device) bool { return o.home.Slot == 0 || dev.Identity().Private }

// ranks is the number of ranks that the store must be for; 0 is any: there is a place for who is alone beside those of ranks,
// and a store with one tree has partitions for any number.
func (o *opener) ranks() int {
	if o.place.Alone() || o.cfg.View == config.ViewJob {
		return 0
	}
	return o.place.Size
}

// want is what the table of target t must say, for so many ranks; 0 is any number.
func (o *opener) want(t, size int) parttable.Want {
	w := want(o.cfg, t, len(o.cfg.Targets), size)
	w.ReadOnly, w.Tree = o.opts.ReadOnly, tree(o.cfg)
	w.AnyUser = o.opts.ReadOnly && os.Geteuid() == 0
	return w
}

// undivided reports whether all of the store is the solo partition, and this is one of several
// ranks.
func (o *opener) undivided(table *parttable.Table) bool {
	return table.JobSize == 1 && !o.place.Alone() && o.place.Size != 0
}

// mount mounts the partition, formatting it before its first use.
func (o *opener) mount(ctx context.Context, p *Partition, entry parttable.Entry) (err error) {
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
	// The table decides what all partitions have in common.
	if h := p.Table.Hugeblock; h != o.cfg.Hugeblock {
		o.opts.Logf("the store has hugeblocks of %s", h)
	}
	err = microfs.Format(ctx, p.Device, seg, microfs.FormatOptions{
		Generation: p.Table.Generation,
		Rank:       max(o.place.Rank, 0),
		Size:       max(o.place.Size, 1),
		Hugeblock:  p.Table.Hugeblock,
		NoDataCRC:  !o.cfg.DataChecksum,
		Ranges:     o.cfg.View == config.ViewJob && o.place.Alone(),
		Cred:       mo.Cred,
	})
	if err != nil {
		return halfFormatted(err)
	}
	p.FS, err = microfs.Mount(ctx, p.Device, seg, mo)
	return err
}

// mountOptions are those of every mount of p.
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
		mo.Claimed = o.mayTakeOver(mo.Holder, o.reserve != nil, p.Target.Transport == nvmf.File)
		mo.Reserve = o.reserve
		mo.Keep = o.opts.Keep
	}
	return mo, err
}

// Cred returns who this process is, as permission checks see it.
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
