package index

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// Options are those of an index.
type Options struct {
	Format uint32    // version of the store's format, which clients must have, too
	Run    uuid.UUID // that clients must be of
	// Timeout is that of the run. A request waits for an adoption no longer than half of it, so that the client has
	// the answer before it gives the index up. 0: it may wait for ever.
	Timeout time.Duration
	// Adopt mounts a partition for reading, once nobody who has written to it before the call can write any more: a new
	// writer may be there. It is called after a client of the partition has died, for several at the same time. done is
	// called at the end of the use. nil: nothing is adopted.
	Adopt func(ctx context.Context, partition uint32) (fs *microfs.FS, done func(), err error)
	// Lease is how long after its start the index looks for nothing in partitions (Adopt).
	Lease time.Duration
	// Grow makes sure that the store has a number of partitions, and returns how many there are. nil: there are as
	// many as there are, 0 for all that clients know.
	Grow func(partitions uint32) (uint32, error)
	// Space returns how many bytes files can have in the partitions of ranks, and how many of these are free. It is called for several
	// clients at the same time. nil: there are none.
	Space func(ctx context.Context) (total, free nvmf.Bytes, err error)
	// Copy fills b with bytes of a copy of a file, of that size and time of modification, from off on. It is called for several clients at the
	// same time, and returns before half of Timeout has passed. nil: there are no copies.
	Copy func(path string, size int64, modified time.Time, b []byte, off int64) error
	// Logf tells what users have to know. May be nil.
	Logf func(format string, args ...any)
}

// An Index answers the calls of clients on a file system.
type Index struct {
	id     uuid.UUID // no other one has it
	fs     *microfs.FS
	opts   Options
	begun  time.Time
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	growing sync.Mutex     // held while Options.Grow runs; before mu
	grown   uint32         // partitions that the store has, since nobody else makes any; 0: not known. Guarded by growing
	growths int            // how often that was called. Guarded by growing
	work    sync.WaitGroup // adoptions, and Serves
	crashed atomic.Bool    // set by the first panic, for good

	mu      sync.Mutex // see the package comment; guards what follows
	closed  bool
	cred    *client // whose credentials the file system has
	clients map[*client]struct{}
	places  map[uint32]*client // by partition
	files   map[microfs.Ino]*file
	kept    map[microfs.Ino]*file // handed over by a client, and not taken yet
	// orphans are shards that no range names, of the current cut of files that are not open.
	orphans   map[microfs.Ino]shardSet
	adoptions map[*adoption]struct{} // under way
	// unfinished are shards that a process had open when it was killed, or when the index before this one was.
	unfinished     map[microfs.Ino]shardSet
	blind          bool           // such shards could not be looked for in some partition
	spans          []microfs.Span // scratch
	unsynced       bool           // why shards can be removed may not be durable yet
	needsSync      bool           // what the call that runs has done is to be durable before it is answered
	syncsRequested uint64         // how many such calls there have been

	syncing   sync.Mutex    // held during a sync for calls; before mu
	syncsDone atomic.Uint64 // how many of them are durable
}

// New returns the index on a file system with ranges, which is mounted for writing, and which nobody else uses until
// Close has returned.
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

// errClosed is what Serve returns after Close.
var errClosed = errors.New("the index has ended")

// Serve answers the requests of one connection until it ends, and closes it. The caller has made sure that it is of a process of
// the run's user. window is memory that it shares with that process (wire.Peer.Share), or nil.
// The error says what was wrong with what came over the
// connection, for a log; nil after its end, whoever has ended it.
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

// crash reports a panic. All calls after it fail, since the state may be half changed.
func (x *Index) crash(during string, recovered any) error {
	err := panics.Error(during, recovered)
	if !x.crashed.Swap(true) {
		x.opts.Logf("%v; every call on files of the job is EIO from here on", err)
	}
	return syscall.EIO
}

// enter takes note of a client, unless the index is closed.
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

// leave forgets a client, whose connection has ended.
func (x *Index) leave(c *client) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.end(c)
}

// Close ends all connections, as if the index had been killed: what clients have open is not closed, and what
// they have not published is left to Adopt. The file system stays mounted.
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
		_ = x.letGo(ino) // what is left of it the next mount removes
	}
}

// do runs a call under the lock. Where the call needs a file that is being adopted, it waits for that and runs it again.
func (x *Index) do(c *client, r call) (wire.Body, []wire.Shard, error) {
	var limit <-chan time.Time // nil: there is none
	for {
		body, list, number, err := x.once(c, r)
		p, ok := err.(*adoption)
		if !ok {
			if err == nil {
				err = x.awaitSync(number)
			}
			return body, list, err
		}
		if limit == nil && x.opts.Timeout > 0 {
			limit = time.After(x.opts.Timeout / 2)
		}
		select {
		case <-p.done:
		case <-limit:
			err := fmt.Errorf("files that a process of partition %d had open when it died cannot be had yet: the partition could not be read within %v: %w",
				p.partition, x.opts.Timeout/2, syscall.EIO)
			x.opts.Logf("%v", err)
			return nil, x.giveUp(c, r), err
		case <-x.ctx.Done():
			return nil, nil, errClosed
		}
	}
}

// A leaving is a call after which the client has nothing open, whatever the answer.
type leaving interface {
	call
	hurry() // and waits for nothing
}

// giveUp ends a call that has waited too long.
func (x *Index) giveUp(c *client, r call) []wire.Shard {
	l, ok := r.(leaving)
	if !ok {
		return nil
	}
	l.hurry()
	_, list, number, _ := x.once(c, l) // the client is told what it has waited for
	_ = x.awaitSync(number)
	return list
}

// once runs a call under the lock, and returns its answer, the shards that the client is to remove, and the call's number if it
// is to be durable before the answer (pay).
func (x *Index) once(c *client, r call) (body wire.Body, list []wire.Shard, number uint64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c.ended {
		return nil, nil, 0, errClosed
	}
	if x.cred != c {
		if err := x.fs.SetCred(c.cred); err != nil {
			return nil, nil, 0, err
		}
		x.cred = c
	}
	x.needsSync = false
	body, err = r.run(c)
	if _, waits := err.(*adoption); !waits {
		list = c.releases()
	}
	return body, list, x.deferSync(), err
}

// grow makes partitions. It needs no lock of the index.
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
