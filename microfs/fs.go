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
	// WriteBehind lets small writes be acknowledged before they are written:
	// File.Sync, File.Close and every other call do it. Their errors are those of
	// Sync and Close, and of all later writes to that open file.
	WriteBehind bool

	// Holder is who mounts for writing; it is recorded in the partition.
	Holder Holder
	// Claimed is asked before a partition is mounted for writing whose last
	// holder has not unmounted it, or has left a deallocation that may still land: an error is
	// that of Mount, Late says what to keep away from. nil lets it be taken over, nothing being late.
	Claimed func(last *Claim) (Late, error)
	// Keep are files that keep what they have though their last name was removed: another process
	// has had them open, and OpenIno is about to open them. Without it Mount frees what has no name.
	Keep []Ino
	// Reserve makes sure that no other run can write to the namespace
	// (nvmf.Reserver). Mount takes that for done; Reserve is called after each
	// reconnection, and when the device reports a conflict. nil: there is no
	// such fence.
	Reserve func(context.Context) error
	// Logf reports what happens in the background and on damage. May be nil.
	Logf func(format string, args ...any)

	mend       bool       // see Repair
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
	// limbo holds runs that are free once the tail of the log is durable.
	limbo      []run
	freeing    []run // by the operation in progress, into limbo when it settles
	retired    retired
	opens      int
	unflushed  nvmf.Bytes // written since the last Flush
	lastChange time.Time
	io         scratch
	mover      mover
	stretches  []stretch
	rec        oplog.Record // of the operation in progress
	one        [1]*nvmf.Command
	flush      nvmf.Command

	ahead  aheadPool
	behind behind
	losses losses
	untold error // a write behind was lost since the last Sync

	ckpt    checkpointer
	dealloc deallocator
	// unflushable is the error of a flush in the background that nobody was told of.
	unflushable error

	claim Claim // sequence 0: none; released: see Vacate
	// claiming says that claim may not be written yet, and the one before is there.
	claiming bool
	late     Late // of the last holder
	// away is since when the target has not answered, over all losses of the
	// connection until the operation got on; zero while it does.
	away        time.Time
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

// enterBehind takes the lock for one that looks after what is to be written
// behind itself.
func (fs *FS) enterBehind() error {
	fs.mu.Lock()
	err := fs.ready()
	if err != nil {
		fs.mu.Unlock()
	}
	return err
}

// ready returns why nothing can be done, if so.
func (fs *FS) ready() error {
	if fs.broken == nil && fs.claim.Released {
		return fs.resume()
	}
	return fs.broken
}

// yield lets whoever waits for the lock have it, between two operations of a large
// read or write. Scratch memory and tree are theirs meanwhile, but for the cursor.
// The caller holds the lock again also when there is an error.
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

// tidy does what is due before somebody else has the lock.
func (fs *FS) tidy() {
	if fs.log.InDoubt() && time.Now().After(fs.supersedeAt) {
		fs.supersede()
	}
	fs.away = time.Time{}
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
func (fs *FS) Unmount() error {
	fs.ckpt.stop()
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.q == nil {
		return nil
	}
	var err error
	if fs.broken == nil && !fs.opts.ReadOnly {
		err = fs.settleAll()
	}
	if err == nil && fs.broken == nil && !fs.opts.ReadOnly {
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

// settleAll leaves nothing to be written, as far as that can be.
func (fs *FS) settleAll() error {
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

// StatFS returns the facts of statfs(2) and more.
func (fs *FS) StatFS() StatFS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.broken == nil {
		fs.writeBehind()
	}
	t := fs.tree
	room := framedRoom(fs.g.stateSize) - stateFixed - nvmf.Bytes(fs.g.blocks)*fs.worstPerBlock()
	st := StatFS{
		Hugeblock: fs.g.hugeblock, Blocks: fs.g.usable - fs.g.spare(), Free: fs.available() - min(fs.available(), fs.g.spare()),
		Files: uint64(t.inodes.count), LogPages: fs.g.logPages, LogFree: fs.log.Free(),
		StateBytes: t.bytes, StateMax: room, OpenFiles: fs.opens,
		Generation: fs.log.Generation(), Checkpoints: fs.ckpt.header.sequence - 1, DataCRC: fs.g.sums,
	}
	if fs.opts.ReadOnly {
		st.Generation-- // the log counts the mount that a seal would make
	}
	if room > t.bytes {
		st.FilesFree = uint64((room - t.bytes) / (inodeSize + entrySize + 16))
	}
	return st
}

// available counts hugeblocks that can be allocated, at once or after a flush.
func (fs *FS) available() Hugeblock {
	return fs.pool.free + fs.inLimbo()
}
