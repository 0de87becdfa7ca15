package index

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"nvmecr/internal/panics"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/tree/wire"
)

// Options are the options of an index.
type Options struct {
	Format uint32    // version of the store's format; clients must have the same
	Run    uuid.UUID // the run of the clients
	// Timeout is the time-out of the run. A request waits for an adoption for at most half of it, so that the client
	// gets the answer before its own time-out. 0: no limit.
	Timeout time.Duration
	// Adopt mounts a partition for reading, after it has made sure that no earlier writer can write any more; a new
	// writer may exist. It is called after a client of the partition has died, concurrently for several partitions.
	// done is called at the end of the use. nil: nothing is adopted.
	Adopt func(ctx context.Context, partition uint32) (fs *microfs.FS, done func(), err error)
	// Lease is how long after its start the index adopts nothing (Adopt).
	Lease time.Duration
	// Grow makes sure that the store has a number of partitions, and returns the number that exist. nil: the number
	// is fixed; clients get 0.
	Grow func(partitions uint32) (uint32, error)
	// Space returns the total and free space of the partitions of ranks. It is called concurrently. nil: there are
	// none.
	Space func(ctx context.Context) (total, free nvmf.Bytes, err error)
	// Copy fills b from off on from a copy of the file with that size and time of modification. It is called
	// concurrently, and returns within half of Timeout. nil: there are no copies.
	Copy func(path string, size int64, modified time.Time, b []byte, off int64) error
	// Logf prints messages for users. It may be nil.
	Logf func(format string, args ...any)
}

// An Index answers the calls of clients on a file system.
type Index struct {
	id     uuid.UUID // unique
	fs     *microfs.FS
	opts   Options
	begun  time.Time
	ctx    context.Context // canceled by Close
	cancel context.CancelFunc

	growing sync.Mutex     // held while Options.Grow runs; before mu
	grown   uint32         // number of partitions, which only this index creates; 0: unknown. Guarded by growing
	growths int            // number of calls of Options.Grow. Guarded by growing
	work    sync.WaitGroup // adoptions and calls of Serve
	crashed atomic.Bool    // set by the first panic, permanently

	mu      sync.Mutex // see the package comment; guards the fields below
	closed  bool
	cred    *client // client whose credentials the file system uses
	clients map[*client]struct{}
	places  map[uint32]*client // by partition
	files   map[microfs.Ino]*file
	kept    map[microfs.Ino]*file // files of Keep that no client has opened yet
	// orphans are shards that no range refers to, of the current cut of files that are not open.
	orphans   map[microfs.Ino]shardSet
	adoptions map[*adoption]struct{} // in progress
	// unfinished are shards that a process had open when it, or the previous index, was killed.
	unfinished     map[microfs.Ino]shardSet
	searchFailed   bool           // a partition could not be searched for such shards
	spans          []microfs.Span // scratch
	unsynced       bool           // the changes that make shards removable may not be durable yet
	needsSync      bool           // the effect of the running call must be durable before its answer
	syncsRequested uint64         // number of such calls

	syncing   sync.Mutex    // held during a sync for calls; before mu
	syncsDone atomic.Uint64 // number of such calls that are durable
}

// New returns the index on a file system with ranges, which is mounted for writing and has no other user until Close
// has returned.
func New(fs *microfs.FS, o Options) *Index {
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Index{
		id: uuid.New(), fs: fs, opts: o, begun: time.Now(), ctx: ctx, cancel: cancel,
		clients: map[*client]struct{}{}, places: map[uint32]*client{}, files: map[microfs.Ino]*file{}, kept: map[microfs.Ino]*file{},
		orphans: map[microfs.Ino]shardSet{}, unfinished: map[microfs.Ino]shardSet{}, adoptions: map[*adoption]struct{}{},
	}
}

// errClosed is the error of Serve after Close.
var errClosed = errors.New("the index has ended")

// Serve answers the requests of a connection until it ends, and closes it. The caller has checked that the peer
// belongs to the run's user. window is memory shared with the peer (wire.Peer.Share), or nil. The error, for a log,
// describes an invalid request; it is nil after a normal end, by either side.
func (x *Index) Serve(stream io.ReadWriteCloser, window []byte) (err error) {
	defer stream.Close()
	defer func() {
		if r := recover(); r != nil {
			err = x.crash("the service of a process", r)
		}
	}()
	c := &client{x: x, stream: stream, peer: wire.NewPeer(stream), partition: wire.NoPartition, files: map[microfs.Ino]*session{}, data: window}
	c.peer.Share(window)
	if !x.enter(c) {
		return errClosed
	}
	defer x.work.Done()
	defer x.leave(c)
	return c.serve()
}

// crash reports a panic. All later calls fail, since the state may be inconsistent.
func (x *Index) crash(during string, recovered any) error {
	err := panics.Error(during, recovered)
	if !x.crashed.Swap(true) {
		x.opts.Logf("%v; every call on files of the job is EIO from here on", err)
	}
	return syscall.EIO
}

// enter registers a client, unless the index is closed.
func (x *Index) enter(c *client) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return false
	}
	x.clients[c] = struct{}{}
	x.work.Add(1)
	return true
}

// leave removes a client whose connection has ended.
func (x *Index) leave(c *client) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.end(c)
}

// Close ends all connections, as if the index had been killed: files of clients are not closed, and unpublished data
// is left to Adopt. The file system stays mounted.
func (x *Index) Close() {
	x.mu.Lock()
	x.closed = true
	for c := range x.clients {
		_ = c.stream.Close()
	}
	x.mu.Unlock()
	x.cancel()
	x.work.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	for ino := range x.kept {
		_ = x.unkeep(ino) // the next mount removes it
	}
}

// A wait is the error of a call that has to be run again later. It is never sent to clients.
type wait interface {
	error
	over() <-chan struct{} // closed when the call can be run again
	// limit returns how much longer a call waits that has waited since begun; limited is false if there is no limit.
	limit(x *Index, begun time.Time) (d time.Duration, limited bool)
	// expired returns the error of a call that has waited so long; nil: it is run again, and does not wait for the same.
	expired(x *Index) error
}

// rest is the limit of all waits of a call, so that the client does not take the index for dead.
func (x *Index) rest(begun time.Time) (d time.Duration, limited bool) {
	half := x.opts.Timeout / 2
	return half - time.Since(begun), half > 0
}

// do runs a call under the lock. If the call has to wait, do runs it again after that.
func (x *Index) do(c *client, r call) (wire.Body, []wire.Shard, error) {
	var begun time.Time
	for {
		body, list, number, err := x.once(c, r)
		w, ok := err.(wait)
		if !ok {
			if err == nil {
				err = x.awaitSync(number)
			}
			return body, list, err
		}
		if begun.IsZero() {
			begun = time.Now()
		}
		var limit <-chan time.Time // nil: no limit
		if d, limited := w.limit(x, begun); limited {
			limit = time.After(d)
		}
		select {
		case <-w.over():
		case <-limit:
			if err := w.expired(x); err != nil {
				x.opts.Logf("%v", err)
				return nil, x.giveUp(c, r), err
			}
		case <-x.ctx.Done():
			return nil, nil, errClosed
		}
	}
}

// A leaving is a call after which the client has the file, or all files, closed, whatever the answer.
type leaving interface {
	call
	hurry() // closes without waiting
}

// giveUp ends a call whose waiting time is over.
func (x *Index) giveUp(c *client, r call) []wire.Shard {
	l, ok := r.(leaving)
	if !ok {
		return nil
	}
	l.hurry()
	_, list, number, _ := x.once(c, l) // the client gets the error about the adoption
	_ = x.awaitSync(number)
	return list
}

// once runs a call under the lock. It returns the answer, the shards that the client has to remove, and the number of
// the call if it must be durable before the answer (awaitSync).
func (x *Index) once(c *client, r call) (body wire.Body, list []wire.Shard, number uint64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c.ended { // while the call waited
		return nil, nil, 0, net.ErrClosed
	}
	if x.cred != c {
		if err := x.fs.SetCred(c.cred); err != nil {
			return nil, nil, 0, err
		}
		x.cred = c
	}
	x.needsSync = false
	body, err = r.run(c)
	if _, waits := err.(wait); !waits {
		list = c.releases()
	}
	return body, list, x.deferSync(), err
}

// grow creates partitions, without the lock of the index.
func (x *Index) grow(partitions uint32) (uint32, error) {
	x.growing.Lock()
	defer x.growing.Unlock()
	if x.opts.Grow == nil {
		if partitions > 0 {
			return 0, syscall.EOPNOTSUPP
		}
		return 0, nil
	}
	if x.grown > 0 && partitions <= x.grown {
		return x.grown, nil
	}
	x.growths++
	n, err := x.opts.Grow(partitions)
	if err == nil {
		x.grown = n
	}
	return n, err
}
