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

// A Client is a connection of this process to the index, and to its successors. One file system uses it.
type Client struct {
	fs atomic.Pointer[FS] // that removes what the index releases

	mu sync.Mutex // held during a call; guards what follows
	// Redial, if not nil, connects to the successor of an index that was killed, for which it waits until the limit. It is
	// set before the second call.
	Redial  func(limit time.Time) (io.ReadWriteCloser, error)
	conn    *wire.Conn
	timeout time.Duration
	hello   wire.Hello
	welcome wire.Welcome
	open    map[microfs.Ino]*opened
}

// Format is the version of what an index and its clients make of a store: shards, their names, and when they are removed. All
// processes of a run have the same.
const Format = 1

// Connect introduces this process to the index at the other end of stream. stream is closed with the client,
// or if Connect fails. timeout is how long an answer may take until the index has told the run's.
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

// Goodbye takes leave of the index, so that it does not take this process for one that was killed, and closes the connection. Of one
// that was killed there is nothing to take leave of, unless this process has files open.
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

// Close closes the connection. Calls that follow fail.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Redial = nil
	return c.conn.Close()
}

// released removes shards. Releases that arrive before there is a file system come again, see FS.tellShards.
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
