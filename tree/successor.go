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

// Where the index was killed, another one takes its place (serve). It knows what is durable, and nothing of who has which files
// open. So a client remembers that, and tells it to the next one.

// An opened is what the index knows of a file that this process has open.
type opened struct {
	birth          uint64
	opens, writers uint32
	locks          [2]wire.Locks // by wire.LockKind
	lost           error         // why the successor does not know it, nil if it does
}

// errDoubt: the index was killed while it carried out a request that cannot be made twice.
var errDoubt = fmt.Errorf("the index of the job's files was killed meanwhile, and nobody knows whether that was done: %w", syscall.EIO)

// Call asks the index. Where that was killed its successor is asked, unless that could do twice what is to be done once.
func (c *Client) Call(op wire.Op, request, answer wire.Body) error {
	_, err := c.callBy(op, request, answer)
	return err
}

// callBy is Call, and says which index has answered.
func (c *Client) callBy(op wire.Op, request, answer wire.Body) (by uuid.UUID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.call(op, request, answer)
	return c.welcome.Index, err
}

// call is Call for who holds c.mu.
func (c *Client) call(op wire.Op, request, answer wire.Body) error {
	once := !wire.Repeatable(op, request)
	if once && c.Redial != nil && !c.conn.Idle() { // known before anything is sent
		if err := c.succeed(); err != nil {
			return err
		}
	}
	err := c.ask(op, request, answer)
	for c.Redial != nil && c.conn.Ended() {
		if err := c.succeed(); err != nil {
			return err
		}
		if once {
			return fmt.Errorf("%v: %w", op, errDoubt)
		}
		err = c.ask(op, request, answer)
	}
	c.note(op, request, answer, err)
	return err
}

// ask asks the index, unless that does not know the file. What it does not know is closed nevertheless.
func (c *Client) ask(op wire.Op, request, answer wire.Body) error {
	o := c.open[wire.FileOf(request)]
	if o == nil || o.lost == nil {
		return c.conn.Call(op, request, answer)
	}
	if r, ok := request.(*wire.Close); ok {
		_ = c.conn.Call(op, &wire.Close{Writer: r.Writer, Failed: true, Publication: wire.Publication{Ino: r.Ino}}, nil) // EBADF, or it is open there without its locks
	}
	return o.lost
}

// note remembers what the index knows now.
func (c *Client) note(op wire.Op, request, answer wire.Body, err error) {
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

// Lease is how long after the start of an index nothing is looked for in partitions: until then a process may write where the one before has given it
// space, without looking whether that still lives.
const Lease = 50 * time.Millisecond

// still says whether no index but this one, which has answered a request that was sent at a time, has looked for what is in the partitions by
// now. A connection does not tell: the end of an index on another host may be heard of late.
func (c *Client) still(by uuid.UUID, sent time.Time) bool {
	if time.Since(sent) < Lease {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Redial == nil {
		return true // and there will be no other one
	}
	root := wire.Stat{Name: wire.Name{Dir: microfs.RootIno}}
	_ = c.call(wire.OpStat, &root, new(wire.AttrAnswer)) // whatever is wrong with the one, it is asked again
	return c.welcome.Index == by
}

// succeedPause is between two attempts to reach a successor.
const succeedPause = 20 * time.Millisecond

// succeed connects to the successor of an index that was killed, within the time-out. If there is none, no call looks for one again.
func (c *Client) succeed() error {
	for limit := time.Now().Add(c.timeout); ; time.Sleep(succeedPause) {
		stream, err := c.Redial(limit)
		if err == nil {
			var killed bool
			if killed, err = c.resume(stream); err == nil {
				return nil
			}
			if killed && time.Now().Before(limit) { // it, too
				continue
			}
		}
		c.Redial = nil
		return fmt.Errorf("%w (no other index has started: %v)", wire.ErrGone, err)
	}
}

// resume introduces this process to a successor, and opens there what it has open. killed says that the connection has ended meanwhile.
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

// reopen opens a file at a successor, and asks for its locks.
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
