package microfs

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// Segment is the part of a namespace that holds one file system.
type Segment struct {
	Start, Length nvmf.Bytes
}

// FormatOptions are fixed when a partition is formatted.
type FormatOptions struct {
	Generation uint64     // of the partition table; a mount must name the same
	Rank, Size int        // recorded, for messages
	Hugeblock  nvmf.Bytes // 4 KiB to 4 MiB, a power of two; 0 is 32 KiB
	LogPages   int        // 0: chosen from the size of the segment
	NoDataCRC  bool       // data is not checksummed
	Cred       Cred       // owner of the root directory
	RootMode   uint32     // permission bits of the root; 0 is 0700
	Ranges     bool       // files may have bytes in other partitions: File.MapRanges
}

// Options are those of one mount.
type Options struct {
	Generation uint64 // must equal FormatOptions.Generation
	ReadOnly   bool   // do not seal the log; changes fail with EROFS
	Cred       Cred
	MountPoint string        // what absolute symbolic links are taken relative to; "" is "/"
	Timeout    time.Duration // how long an operation waits for a lost target; 0 is 60 s
	QueueDepth int           // 0 is 64
	NoCoalesce bool          // every write gets a log record of its own
	// WriteBehind acknowledges small writes before they are written. File.Sync,
	// File.Close and every other call write them. An error of such a write is
	// returned by Sync and Close, and by all later writes to that open file.
	WriteBehind bool

	// Holder is who mounts for writing; it is recorded in the partition.
	Holder Holder
	// Claimed is called before a mount for writing of a partition that its last
	// holder has not unmounted, or on which a deallocation of that holder may still
	// land. Mount returns its error; Late says which late commands Mount must expect.
	// nil: Mount takes the partition over, and expects none.
	Claimed func(last *Claim) (Late, error)
	// Keep are files that keep what they have though their last name was removed: another process
	// has had them open, and OpenIno is about to open them. Without it Mount frees what has no name.
	Keep []Ino
	// Reserve makes sure that no other run can write to the namespace
	// (nvmf.Reserver). The caller of Mount has done it once; FS calls Reserve after
	// each reconnection, and when the device reports a reservation conflict. nil:
	// the namespace has no reservation.
	Reserve func(context.Context) error
	// Logf reports what happens in the background and on damage. May be nil.
	Logf func(format string, args ...any)

	repair     bool       // see Repair
	behindSize nvmf.Bytes // the most that is written behind; 0: the constant
}

// FS is a mounted file system. All methods are safe for concurrent use; they
// take turns. See the package comment.
type FS struct {
	g    *geometry
	dev  nvmf.Device
	opts Options

	mu     lock
	q      nvmf.Queue // owned by whoever holds mu
	idle   sync.Cond  // on mu: a long operation on a file has ended
	log    *oplog.Log
	tree   *tree
	pool   pool
	broken error // set once nothing works any more
	// pendingFree holds runs that are free once the tail of the log is durable.
	pendingFree []run
	freeing     []run // by the operation in progress, into pendingFree when it settles
	retired     retired
	opens       int
	unflushed   nvmf.Bytes // written since the last Flush
	lastChange  time.Time
	io          scratch
	mover       mover
	reads       []readRange
	rec         oplog.Record // of the operation in progress
	one         [1]*nvmf.Command
	flush       nvmf.Command

	ahead           aheadPool
	behind          behind
	losses          losses
	unreportedWrite error // a write behind was lost since the last Sync

	ckpt    checkpointer
	dealloc deallocator
	// unreportedFlush is the error of a flush in the background; the next Sync returns it.
	unreportedFlush error

	claim Claim // sequence 0: none; released: see Vacate
	// claiming says that claim may not be written yet: the media may have the one before.
	claiming bool
	late     Late // of the last holder
	// silentSince is since when the target has not answered, over all losses of the
	// connection until the operation got on; zero while it does.
	silentSince time.Time
	supersedeAt time.Time // earliest time of the next attempt; zero: none has failed
	// conflicts counts commands refused for a reservation since one was not.
	conflicts int
	repair    []repair // found by the mount
}

const (
	defaultTimeout    = 60 * time.Second
	defaultQueueDepth = 64
)

// enter takes the lock for an operation that only reads.
func (fs *FS) enter() error {
	if err := fs.enterBehind(); err != nil {
		return err
	}
	fs.writeBehind()
	if fs.broken != nil {
		fs.mu.Unlock()
		return fs.broken
	}
	return nil
}

// enterBehind takes the lock for an operation that calls writeBehind itself where
// it has to.
func (fs *FS) enterBehind() error {
	fs.mu.Lock()
	err := fs.ready()
	if err != nil {
		fs.mu.Unlock()
	}
	return err
}

// ready returns why the file system is out of service, nil if it is not. After
// Vacate it claims the partition again.
func (fs *FS) ready() error {
	if fs.broken == nil && fs.claim.Released {
		return fs.resume()
	}
	return fs.broken
}

// yield gives the lock to the goroutines that wait for it, between two operations
// of a large read or write. Meanwhile they may change the tree and the scratch
// memory, except the cursor. The caller holds the lock again when yield returns,
// also with an error.
func (fs *FS) yield() error {
	cur := fs.io.cur
	fs.tidy()
	fs.mu.Yield()
	fs.io.cur = cur
	if err := fs.ready(); err != nil {
		return err
	}
	fs.writeBehind()
	fs.io.cur = cur
	return fs.broken
}

// enterWrite takes the lock for an operation that changes something.
func (fs *FS) enterWrite() error {
	if err := fs.enter(); err != nil {
		return err
	}
	if fs.opts.ReadOnly {
		fs.mu.Unlock()
		return syscall.EROFS
	}
	return nil
}

// SetCred changes who calls from now on.
func (fs *FS) SetCred(c Cred) error {
	if err := fs.enter(); err != nil {
		return err
	}
	defer fs.leave()
	fs.opts.Cred = c
	return nil
}

// leave gives the lock back. It is deferred: a panic puts the file system out of
// service on its way, because what it was about to change is half changed.
func (fs *FS) leave() {
	if p := recover(); p != nil {
		_ = fs.fail(fmt.Errorf("internal error: %v", p))
		fs.mu.Unlock()
		panic(p)
	}
	fs.tidy()
	fs.mu.Unlock()
}

// tidy does, before the lock is given up, what every operation ends with.
func (fs *FS) tidy() {
	if fs.log.InDoubt() && time.Now().After(fs.supersedeAt) {
		fs.supersede()
	}
	fs.silentSince = time.Time{}
	fs.ckpt.consider(fs)
	fs.dealloc.consider(fs)
}

// fail puts the file system out of service. Nothing may be in flight.
func (fs *FS) fail(cause error) error {
	if fs.broken == nil {
		fs.broken = &brokenError{cause}
		fs.q = brokenQueue{fs.q, fs.broken}
		fs.logf("%v", fs.broken)
	}
	return fs.broken
}

func (fs *FS) logf(format string, args ...any) {
	if fs.opts.Logf != nil {
		fs.opts.Logf(format, args...)
	}
}

func now() int64 { return time.Now().UnixNano() }

// Unmount ends the file system: what was acknowledged is made durable, open
// files become invalid (EIO), the queue is closed. The device stays open.
func (fs *FS) Unmount() error { return fs.unmount(true) }

// unmount is Unmount, but without release the partition still counts as that of a process that was killed.
func (fs *FS) unmount(release bool) error {
	fs.ckpt.stop()
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.q == nil {
		return nil
	}
	var err error
	if fs.broken == nil && !fs.opts.ReadOnly {
		err = fs.flushAll()
	}
	if err == nil && fs.broken == nil && !fs.opts.ReadOnly && release {
		err = fs.releaseClaim()
	}
	if fs.broken == nil {
		fs.broken = &brokenError{errUnmounted}
	}
	if cerr := fs.q.Close(); err == nil {
		err = cerr
	}
	fs.q = nil
	return err
}

// flushAll writes and makes durable whatever is buffered, and deallocates.
func (fs *FS) flushAll() error {
	fs.writeBehind()
	err := fs.syncAll()
	if fs.log.InDoubt() {
		fs.supersede()
	}
	if err == nil {
		fs.deallocateAll()
	}
	return err
}

// DataCRC says whether data is checksummed: nothing is read then that belongs to another file by now.
func (fs *FS) DataCRC() bool { return fs.g.sums }

// StatFS returns the facts of statfs(2) and more.
func (fs *FS) StatFS() StatFS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.broken == nil {
		fs.writeBehind()
	}
	t := fs.tree
	room := framedCapacity(fs.g.stateSize) - stateFixed - nvmf.Bytes(fs.g.blocks)*fs.worstPerBlock()
	st := StatFS{
		Hugeblock: fs.g.hugeblock, Blocks: fs.g.usable - fs.g.spare(), Free: fs.available() - min(fs.available(), fs.g.spare()),
		Files: uint64(t.inodes.count), LogPages: fs.g.logPages, LogFree: fs.log.Free(),
		StateBytes: t.bytes, StateMax: room, OpenFiles: fs.opens,
		Generation: fs.log.Generation(), Checkpoints: fs.ckpt.header.sequence - 1, Ranges: fs.g.ranges,
	}
	st.Avail = st.Free
	if fs.opts.ReadOnly {
		st.Generation-- // Generation counts this mount, which has sealed nothing
	}
	if room > t.bytes {
		st.FilesFree = uint64((room - t.bytes) / (inodeSize + entrySize + 16))
	}
	return st
}

// available counts hugeblocks that can be allocated, at once or after a flush.
func (fs *FS) available() Hugeblock {
	return fs.pool.free + fs.pendingFreeBlocks()
}
