package tree

import (
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"
	"time"

	"github.com/google/uuid"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// If the index is killed, a successor takes its place (package serve). It knows the durable state, but not which
// files are open. So each client remembers its open files and reports them to the successor.

// An opened is the index's state of a file that this process has open.
type opened struct {
	birth          uint64
	opens, writers uint32
	locks          [2]wire.Locks // by wire.LockKind
	lost           error         // why the successor does not have the file open; nil if it has
}

// errUncertain means that the index was killed during a request that cannot be repeated.
var errUncertain = fmt.Errorf("the index of the job's files was killed meanwhile, and it is unknown whether the call was executed: %w", syscall.EIO)

// Call sends a request to the index. If the index was killed the request is repeated at its successor, unless it
// might be executed twice.
func (c *Client) Call(op wire.Op, request, answer wire.Body) error {
	_, err := c.callBy(op, request, answer)
	return err
}

// callBy is Call; it returns the id of the index that has answered.
func (c *Client) callBy(op wire.Op, request, answer wire.Body) (by uuid.UUID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.call(op, request, answer)
	return c.welcome.Index, err
}

// call is Call for a caller that holds c.mu.
func (c *Client) call(op wire.Op, request, answer wire.Body) error {
	once := !wire.Repeatable(op, request)
	if once && c.Redial != nil && !c.conn.Idle() { // the kill is known before the request is sent
		if err := c.reconnect(); err != nil {
			return err
		}
	}
	err := c.ask(op, request, answer)
	for c.Redial != nil && c.conn.Ended() {
		if err := c.reconnect(); err != nil {
			return err
		}
		if once {
			return fmt.Errorf("%v: %w", op, errUncertain)
		}
		err = c.ask(op, request, answer)
	}
	c.recordState(op, request, answer, err)
	return err
}

// locked reports whether the process has locks of the file.
func (o *opened) locked() bool { return len(o.locks[0])+len(o.locks[1]) > 0 }

// ask sends a request, unless the index does not have the file open. A Close still has to be sent then. Nobody depends on when a file is
// closed that was only read and is not locked, so nobody waits for that.
func (c *Client) ask(op wire.Op, request, answer wire.Body) error {
	o := c.open[wire.FileOf(request)]
	r, closes := request.(*wire.Close)
	switch {
	case o == nil || o.lost == nil && (!closes || r.Writer || o.locked()):
		return c.conn.Call(op, request, answer)
	case o.lost == nil:
		return c.conn.Tell(wire.OpLeave, &wire.Leave{Ino: r.Ino})
	case closes:
		_ = c.conn.Call(op, &wire.Close{Writer: r.Writer, Failed: true, Publication: wire.Publication{Ino: r.Ino}}, nil) // fails with EBADF if the file is not open there
	}
	return o.lost
}

// recordState records the index's new state of open files.
func (c *Client) recordState(op wire.Op, request, answer wire.Body, err error) {
	if r, ok := request.(*wire.Close); ok {
		c.noteClose(r)
	}
	if err != nil {
		return
	}
	switch r := request.(type) {
	case *wire.Open:
		c.noteOpen(answer.(*wire.File), r.Flags)
	case *wire.OpenIno:
		c.noteOpen(answer.(*wire.File), r.Flags)
	case *wire.Lock:
		if o := c.open[r.Ino]; o != nil && !r.Test {
			o.locks[r.Kind] = o.locks[r.Kind].Replaced(r.Start, r.End, r.Hold)
		}
	case *wire.Cred:
		c.hello.Cred = r.Cred
	}
}

func (c *Client) noteOpen(f *wire.File, flags uint32) {
	o := c.open[f.Attr.Ino]
	if o == nil {
		o = &opened{birth: f.Attr.Birth}
		c.open[f.Attr.Ino] = o
	}
	o.opens++
	if wire.Writing(flags) {
		o.writers++
	}
}

func (c *Client) noteClose(r *wire.Close) {
	o := c.open[r.Ino]
	if o == nil {
		return
	}
	if r.Writer {
		o.writers--
	}
	if o.opens--; o.opens == 0 {
		delete(c.open, r.Ino)
	}
}

// Lease is how long after its start an index adopts no data from partitions. Until then a process may write to space
// that the previous index has reserved for it, without checking whether that index still runs.
const Lease = 50 * time.Millisecond

// soleAdopter reports whether the index by, which has answered a request sent at a time, is the only one that can have
// adopted data from the partitions by now. The state of the connection is no proof: the end of an index on another
// host may be noticed late.
func (c *Client) soleAdopter(by uuid.UUID, sent time.Time) bool {
	if time.Since(sent) < Lease {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Redial == nil {
		return true // and there will be no successor
	}
	root := wire.Stat{Name: wire.Name{Dir: microfs.RootIno}}
	_ = c.call(wire.OpStat, &root, new(wire.AttrAnswer)) // on an error the successor is called
	return c.welcome.Index == by
}

// reconnectPause is the pause between two attempts to reach a successor.
const reconnectPause = 20 * time.Millisecond

// reconnect connects to the successor of a killed index within the time-out. If there is none, later calls do not try
// again.
func (c *Client) reconnect() error {
	for limit := time.Now().Add(c.timeout); ; time.Sleep(reconnectPause) {
		stream, err := c.Redial(limit)
		if err == nil {
			var killed bool
			if killed, err = c.resume(stream); err == nil {
				return nil
			}
			if killed && time.Now().Before(limit) { // the successor was killed, too
				continue
			}
		}
		c.Redial = nil
		return fmt.Errorf("%w (no other index has started: %v)", wire.ErrGone, err)
	}
}

// resume introduces this process to a successor, and reopens its files there. killed reports that the connection
// ended meanwhile.
func (c *Client) resume(stream io.ReadWriteCloser) (killed bool, err error) {
	conn := wire.NewConn(stream, c.timeout, c.released)
	hello, welcome := c.hello, wire.Welcome{}
	hello.Before = c.welcome.Index
	if err = conn.Call(wire.OpHello, &hello, &welcome); err != nil {
		return conn.Ended(), errors.Join(err, conn.Close())
	}
	for ino, o := range c.open {
		if o.lost != nil {
			continue
		}
		if lost := o.reopen(conn, ino); errors.Is(lost, wire.ErrGone) {
			return conn.Ended(), errors.Join(lost, conn.Close())
		} else if lost != nil {
			o.lost = fmt.Errorf("inode %d, which was open when the index of the job's files was killed, cannot be used any more: %v: %w", ino, lost, syscall.EIO)
			c.logf("%v", o.lost)
		}
	}
	c.conn, c.welcome.Index = conn, welcome.Index
	return false, nil
}

// reopen opens a file at a successor, and requests its locks.
func (o *opened) reopen(conn *wire.Conn, ino microfs.Ino) error {
	if err := conn.Call(wire.OpReopen, &wire.Reopen{Ino: ino, Birth: o.birth, Opens: o.opens, Writers: o.writers}, nil); err != nil {
		return fmt.Errorf("it has lost its last name: %w", err)
	}
	for kind, locks := range o.locks {
		if len(locks) == 0 {
			continue
		}
		lock := wire.Lock{Ino: ino, Kind: wire.LockKind(kind), End: math.MaxInt64, Hold: locks}
		if err := conn.Call(wire.OpLock, &lock, new(wire.Conflict)); err != nil {
			return fmt.Errorf("another process has its lock now: %w", err)
		}
	}
	return nil
}
