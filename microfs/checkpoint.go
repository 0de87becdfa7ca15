package microfs

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"nvmecr/internal/crc64"
	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// checkpointer writes state checkpoints. It writes the tree as of one settled image into the area
// that is not current, then the header. Every step takes FS.mu: the background goroutine gives the
// lock up between steps, while an operation that finds the log full runs all steps in a row.
type checkpointer struct {
	header stateHeader // the current one
	state  []byte      // the state being written; nil if none is
	done   int         // bytes of it that are on the media
	crc    uint64      // CRC of these bytes
	prior  oplog.Prior // the log continues from here
	// switching says that a header on the media may name the state already. The state cannot be
	// given up then, because the next one would overwrite it.
	switching bool
	group     []byte // blocks of a chunk, or a header
	spare     []byte // memory for the next state
	// lost has, for each state area, the time of the last lost connection with a chunk for that area,
	// or its header, in flight. The same bytes may be written again at once. Other bytes may be
	// written only when the target can no longer execute the lost command.
	lost [2]time.Time

	// waiting says that the background goroutine has set a timer for the time when the file system
	// may be quiet. Only work that cannot wait that long has to wake the goroutine.
	waiting bool

	wake chan struct{} // capacity 1: there may be something to do
	quit chan struct{}
	once sync.Once // closes quit
	// gone waits for the background goroutines: that of the checkpointer and that of the
	// deallocator.
	gone sync.WaitGroup
}

// quietTime is the time without changes after which a state checkpoint starts: probably the
// application computes then. If no file is open, a state checkpoint starts after quietTime when less
// than half of the log is free, and at once when less than a quarter is free. If a file is open, it
// starts after quietTime when less than a quarter is free, and at once only when the log is full.
const quietTime = 100 * time.Millisecond

func (c *checkpointer) start(fs *FS) {
	c.wake = make(chan struct{}, 1)
	c.quit = make(chan struct{})
	c.gone.Go(fs.routineCheckpoint)
	if fs.pool.tracksUsed {
		c.gone.Go(fs.routineDeallocate)
	}
}

// stop ends the background goroutines.
func (c *checkpointer) stop() {
	if c.quit == nil {
		return
	}
	c.once.Do(func() { close(c.quit) })
	c.gone.Wait()
}

// wanted reports whether to start a state checkpoint at once (start), or after quietTime without
// changes (later).
func (c *checkpointer) wanted(fs *FS) (start, later bool) {
	if fs.broken != nil || fs.opts.ReadOnly || (c.state == nil && c.late() > 0) {
		return false, false
	}
	free, pages := fs.log.Free(), fs.g.logPages
	if fs.opens > 0 {
		return false, free < pages/4
	}
	return free < pages/4, free < pages/2
}

// late returns the time for which the area of the next state must not be written yet.
func (c *checkpointer) late() time.Duration {
	at := c.lost[1-c.header.area]
	if at.IsZero() {
		return 0
	}
	return max(0, oplog.Quarantine-time.Since(at))
}

// consider wakes the background goroutine if there is something to do. It is called with FS.mu held
// at the end of every operation.
func (c *checkpointer) consider(fs *FS) {
	if c.wake == nil {
		return
	}
	if start, later := c.wanted(fs); start || later && !c.waiting {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// routineCheckpoint writes state checkpoints in the background.
func (fs *FS) routineCheckpoint() {
	c := &fs.ckpt
	for {
		select {
		case <-c.quit:
			return
		case <-c.wake:
		}
		for fs.backgroundStep() {
			select {
			case <-c.quit:
				return
			default:
			}
		}
	}
}

// backgroundStep waits for quiet and does one step under the lock. It returns false when there is
// nothing more to do.
func (fs *FS) backgroundStep() bool {
	more, wait := fs.backgroundTurn()
	if wait == 0 {
		return more
	}
	select {
	case <-fs.ckpt.quit:
		return false
	case <-fs.ckpt.wake:
	case <-time.After(wait):
	}
	return true
}

// backgroundTurn does one step, or returns how long to wait until the file system may be quiet. A
// panic puts the file system out of service; the process goes on.
func (fs *FS) backgroundTurn() (more bool, wait time.Duration) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			_ = fs.fail(fmt.Errorf("internal error in a state checkpoint: %v", p))
			more, wait = false, 0
		}
	}()
	if fs.claim.Released { // nothing to do until an operation claims the partition again
		return false, 0
	}
	start, later := fs.ckpt.wanted(fs)
	busy := fs.ckpt.state != nil
	quiet := time.Since(fs.lastChange)
	if !busy && !start && (!later || quiet < quietTime) {
		if fs.ckpt.waiting = later; later {
			wait = quietTime - quiet + time.Millisecond
		}
		return false, wait
	}
	err := fs.checkpointStep()
	if err != nil {
		fs.logf("state checkpoint: %v", err)
	}
	fs.ckpt.waiting = false
	return fs.ckpt.state != nil && err == nil, 0
}

// Checkpoint writes a state checkpoint now.
func (fs *FS) Checkpoint() error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	return fs.checkpoint()
}

// checkpoint finishes the state checkpoint in progress, or writes one.
func (fs *FS) checkpoint() error {
	for {
		if err := fs.checkpointStep(); err != nil {
			return err
		}
		if fs.ckpt.state == nil {
			return nil
		}
	}
}

// checkpointStep begins a state checkpoint, writes its next chunk, or, after the last chunk,
// switches the header. A step that loses the connection is repeated.
func (fs *FS) checkpointStep() error {
	c := &fs.ckpt
	var err error
	switch {
	case c.state == nil:
		err = fs.beginCheckpoint()
	case c.done < len(c.state):
		err = fs.writeChunk()
	default:
		err = fs.switchHeader()
	}
	if err == nil {
		fs.silentSince = time.Time{}
	}
	if lost(err) {
		c.lost[1-c.header.area] = time.Now()
		if err = fs.reconnect(err); err == nil {
			return nil
		}
	}
	if err != nil && (nvmf.IsConflict(err) || nvmf.IsPreempted(err)) {
		if err = fs.resolveConflict(err); err == nil {
			return nil
		}
	}
	if err != nil && !c.switching {
		c.state = nil
	}
	return err
}

var (
	errStateTooLarge = errors.New("state does not fit its area")
	// errStateLate: the area to write has a chunk of an earlier state in flight.
	errStateLate = fmt.Errorf("the area for the next state checkpoint may still be written by an earlier one: %w", oplog.ErrUnstable)
)

// keepState is the largest memory of a state that is kept for the next one.
const keepState = 1 << 20

// buffer returns memory of n bytes, valid until the next call. Most states take much less than a
// whole group.
func (c *checkpointer) buffer(n int) []byte {
	if len(c.group) < n {
		c.group = make([]byte, min(n+n/4, max(n, groupBytes)))
	}
	return c.group[:n]
}

// beginCheckpoint first puts the records of the log's tail into both slots. Then it takes the
// snapshot: the tree after the tail of the log.
func (fs *FS) beginCheckpoint() error {
	if err := fs.syncLog(); err != nil {
		return err
	}
	c := &fs.ckpt
	if c.late() > 0 {
		return errStateLate
	}
	state := fs.tree.encode(c.spare)
	if cap(state) <= keepState {
		c.spare = state
	}
	if nvmf.Bytes(len(state)) > framedCapacity(fs.g.stateSize) {
		return errStateTooLarge
	}
	c.prior = fs.log.Prior()
	c.state, c.done, c.crc = state, 0, 0
	if mutant.On(mutant.EarlyRelease) {
		fs.log.Release(c.prior)
	}
	return nil
}

// writeChunk writes the next group of blocks of the state to the area that is
// not current.
func (fs *FS) writeChunk() error {
	c := &fs.ckpt
	part := c.state[c.done:min(len(c.state), c.done+groupPayload)]
	g, area := c.done/groupPayload, c.nextArea()
	blocks := frameGroup(c.buffer(int(framedSize(nvmf.Bytes(len(part))))), part, c.header.sequence+1, g)
	at := fs.g.lbaOf(fs.g.state[area] + nvmf.Bytes(g)*groupBytes)
	if err := fs.transfer(nvmf.Write, at, blocks, false); err != nil {
		return err
	}
	c.done += len(part)
	c.crc = crc64.Update(c.crc, part)
	return nil
}

// nextArea is the state area that is not current.
func (c *checkpointer) nextArea() int {
	if mutant.On(mutant.SameArea) {
		return c.header.area
	}
	return 1 - c.header.area
}

// restart writes the state in progress again from its beginning, after a reconnection: the volatile
// cache may have lost its chunks.
func (c *checkpointer) restart() { c.done, c.crc = 0, 0 }

// switchHeader makes the written state the current one: it flushes, then writes one header, then
// the other. Only then are the old log pages free.
func (fs *FS) switchHeader() error {
	c := &fs.ckpt
	next := stateHeader{
		sequence: c.header.sequence + 1, area: c.nextArea(),
		length: nvmf.Bytes(len(c.state)), crc: c.crc, prior: c.prior,
	}
	if err := fs.writeHeader(&next); err != nil {
		return err
	}
	c.header, c.state, c.switching = next, nil, false
	fs.log.Release(c.prior)
	return nil
}

// writeHeader makes the state durable, then writes the header to one slot and, when the header is
// durable there, to the other. It does not call Log.Flushed: log images may have settled since the
// snapshot, and this flush need not include them.
func (fs *FS) writeHeader(h *stateHeader) error {
	id := fs.dev.Identity()
	if !mutant.On(mutant.NoHeaderFlush) {
		if err := flushQueue(fs.q, id); err != nil {
			return err
		}
	}
	buf := fs.ckpt.buffer(blockSize)
	h.encode(buf, fs.g.fs)
	fs.ckpt.switching = true
	for slot := range 2 {
		at := fs.g.lbaOf(headerOffset + nvmf.Bytes((int(h.sequence)+slot)%2)*blockSize)
		if err := fs.transfer(nvmf.Write, at, buf, true); err != nil {
			return err
		}
	}
	return nil
}
