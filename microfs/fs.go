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
	Rank, Size int        // recorded for messages
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
	MountPoint string        // base of absolute symbolic links; "" is "/"
	Timeout    time.Duration // how long an operation waits for a lost target; 0 is 60 s
	QueueDepth int           // 0 is 64
	NoCoalesce bool          // every write gets a log record of its own
	// WriteBehind acknowledges small writes before they are written. File.Sync,
	// File.Close and every other call write them. An error of such a write is
	// returned by Sync and Close, and by all later writes to that open file.
	WriteBehind bool

	// Holder is the process that mounts for writing; it is recorded in the partition.
	Holder Holder
	// Claimed is called before a mount for writing if the last holder has not unmounted the
	// partition, or if a deallocation of that holder may still be executed. Mount returns its
	// error. Late says which commands may still be executed. nil: Mount takes the partition over,
	// and expects no late commands.
	Claimed func(last *Claim) (Late, error)
	// Keep lists files that stay although their last name was removed: another process has had them
	// open, and OpenIno is about to open them. Mount frees all other files without a name.
	Keep []Ino
	// Reserve ensures that no other run can write to the namespace (nvmf.Reserver). The caller calls
	// it once before Mount. FS calls it after each reconnection, and when the device reports a
	// reservation conflict. nil: the namespace has no reservation.
	Reserve func(context.Context) error
	// Logf receives messages about damage and background work. May be nil.
	Logf func(format string, args ...any)

	repair     bool       // see Repair
	behindSize nvmf.Bytes // size of the write-behind buffer; 0: behindSize
}

// FS is a mounted file system. All methods are safe for concurrent use; one runs at a time. See the
// package comment.
type FS struct {
	g    *geometry
	dev  nvmf.Device
	opts Options

	mu     lock
	q      nvmf.Queue // owned by the holder of mu
	idle   sync.Cond  // on mu: a long operation on a file has ended
	log    *oplog.Log
	tree   *tree
	pool   pool
	broken error // set when the file system is out of service
	// pendingFree holds runs that are free once the tail of the log is durable.
	pendingFree []run
	freeing     []run // freed by the operation in progress; moved to pendingFree when it settles
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
	unreportedWrite error // error of a write behind since the last Sync

	ckpt    checkpointer
	dealloc deallocator
	// unreportedFlush is the error of a background flush; the next Sync returns it.
	unreportedFlush error

	claim Claim // sequence 0: none; released: see Vacate
	// claiming says that claim may not be on the media yet: the one before may be.
	claiming bool
	late     Late // commands of the last holder that may still be executed
	// silentSince is the time since which the target has not answered, over all lost connections
	// until an operation makes progress; zero while it answers.
	silentSince time.Time
	supersedeAt time.Time // earliest time of the next attempt; zero: none has failed
	// conflicts counts the commands in a row that were refused for a reservation.
	conflicts int
	repair    []repair // damaged blocks that the mount has found
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

// enterBehind takes the lock for an operation that calls writeBehind itself if necessary.
func (fs *FS) enterBehind() error {
	fs.mu.Lock()
	err := fs.ready()
	if err != nil {
		fs.mu.Unlock()
	}
	return err
}

// ready returns the reason why the file system is out of service, nil if it is in service. After
// Vacate it claims the partition again.
func (fs *FS) ready() error {
	if fs.broken == nil && fs.claim.Released {
		return fs.resume()
	}
	return fs.broken
}

// yield gives the lock to waiting goroutines between two operations of a large read or write. They
// may change the tree and the scratch memory, except the cursor. The caller holds the lock again
// when yield returns, also with an error.
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

// SetCred changes the credentials of later calls.
func (fs *FS) SetCred(c Cred) error {
	if err := fs.enter(); err != nil {
		return err
	}
	defer fs.leave()
	fs.opts.Cred = c
	return nil
}

// leave gives the lock up. It is deferred: after a panic in an operation, which may have made half
// of its changes, leave puts the file system out of service.
func (fs *FS) leave() {
	if p := recover(); p != nil {
		_ = fs.fail(fmt.Errorf("internal error: %v", p))
		fs.mu.Unlock()
		panic(p)
	}
	fs.tidy()
	fs.mu.Unlock()
}

// tidy does the last steps of every operation before the lock is given up.
func (fs *FS) tidy() {
	if fs.log.InDoubt() && time.Now().After(fs.supersedeAt) {
		fs.supersede()
	}
	fs.silentSince = time.Time{}
	fs.ckpt.consider(fs)
	fs.dealloc.consider(fs)
}

// fail puts the file system out of service. No command may be in flight.
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

// Unmount makes everything acknowledged durable, invalidates open files (EIO) and closes the queue.
// The device stays open.
func (fs *FS) Unmount() error { return fs.unmount(true) }

// unmount is Unmount. Without release the claim stays unreleased, as that of a killed process.
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

// flushAll writes all buffered data, makes it durable, and deallocates.
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

// DataCRC reports whether data is checksummed. With checksums, a read cannot return data that now
// belongs to another file.
func (fs *FS) DataCRC() bool { return fs.g.sums }

// StatFS returns the values of statfs(2) and more.
func (fs *FS) StatFS() StatFS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.broken == nil {
		fs.writeBehind()
	}
	t := fs.tree
	limit := framedCapacity(fs.g.stateSize) - stateFixed - nvmf.Bytes(fs.g.blocks)*fs.worstPerBlock()
	st := StatFS{
		Hugeblock: fs.g.hugeblock, Blocks: fs.g.usable - fs.g.spare(), Free: fs.available() - min(fs.available(), fs.g.spare()),
		Files: uint64(t.inodes.count), LogPages: fs.g.logPages, LogFree: fs.log.Free(),
		StateBytes: t.bytes, StateMax: limit, OpenFiles: fs.opens,
		Generation: fs.log.Generation(), Checkpoints: fs.ckpt.header.sequence - 1, Ranges: fs.g.ranges,
	}
	st.Avail = st.Free
	if fs.opts.ReadOnly {
		st.Generation-- // Generation counts this mount, which has not sealed the log
	}
	if limit > t.bytes {
		st.FilesFree = uint64((limit - t.bytes) / (inodeSize + entrySize + 16))
	}
	return st
}

// available returns the number of hugeblocks that can be allocated, at once or after a flush.
func (fs *FS) available() Hugeblock {
	return fs.pool.free + fs.pendingFreeBlocks()
}
