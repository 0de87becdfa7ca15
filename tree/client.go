package tree

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// A Client is the connection of this process to the index, and to the successors of the index. One FS uses it.
type Client struct {
	fs atomic.Pointer[FS] // removes shards that the index releases

	mu sync.Mutex // held during a call; guards the fields below
	// Redial, if not nil, connects to the successor of a killed index. It waits for the successor until limit. It is
	// set before the second call.
	Redial  func(limit time.Time) (io.ReadWriteCloser, error)
	conn    *wire.Conn
	timeout time.Duration
	hello   wire.Hello
	welcome wire.Welcome
	open    map[microfs.Ino]*opened
}

// Format is the version of the conventions that an index and its clients share: shards, their names, and when they
// are removed. All processes of a run must have the same.
const Format = 2

// Connect introduces this process to the index at the other end of stream. The client owns stream, and closes it if
// Connect fails. timeout is the time-out for answers until the index has sent that of the run.
func Connect(stream io.ReadWriteCloser, hello wire.Hello, timeout time.Duration) (*Client, error) {
	c := &Client{hello: hello, timeout: timeout, open: make(map[microfs.Ino]*opened)}
	c.conn = wire.NewConn(stream, timeout, c.released)
	if err := c.Call(wire.OpHello, &hello, &c.welcome); err != nil {
		return nil, errors.Join(fmt.Errorf("the index of the job's files does not take this process: %w", err), c.Close())
	}
	if c.welcome.Timeout > 0 {
		c.timeout = c.welcome.Timeout
		c.conn.SetTimeout(c.timeout)
	}
	return c, nil
}

// Partitions returns the number of partitions of the store. Before that the index creates partitions until there are n.
func (c *Client) Partitions(n uint32) (uint32, error) {
	if c.welcome.Partitions < n {
		grow := wire.Grow{Partitions: n}
		if err := c.Call(wire.OpGrow, &grow, &grow); err != nil {
			return c.welcome.Partitions, fmt.Errorf("making the store %d partitions, where there are %d: %w", n, c.welcome.Partitions, err)
		}
		c.welcome.Partitions = grow.Partitions
	}
	return c.welcome.Partitions, nil
}

// Goodbye announces the end of this process to the index, which otherwise takes it for killed, and closes the
// connection. If the index was killed, its successor has to be told only if this process has files open.
func (c *Client) Goodbye() error {
	c.mu.Lock()
	nothing := len(c.open) == 0
	if nothing {
		c.Redial = nil
	}
	c.mu.Unlock()
	err := c.Call(wire.OpGoodbye, nil, nil)
	if nothing && errors.Is(err, wire.ErrGone) {
		err = nil
	}
	return errors.Join(err, c.Close())
}

// Close closes the connection. Later calls fail.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Redial = nil
	return c.conn.Close()
}

// released removes shards. The index repeats releases that arrive before there is a file system: see FS.tellShards.
func (c *Client) released(list []wire.Shard) {
	if fs := c.fs.Load(); fs != nil {
		fs.remove(list)
	}
}

func (c *Client) logf(format string, args ...any) {
	if fs := c.fs.Load(); fs != nil {
		fs.opts.Logf(format, args...)
	}
}
