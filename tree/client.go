package tree

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"nvmecr/tree/wire"
)

// A Client is a connection of this process to the index. A file system uses it alone.
type Client struct {
	*wire.Conn
	hello   wire.Hello
	welcome wire.Welcome
	fs      atomic.Pointer[FS] // that removes what the index releases
}

// Format is the version of what an index and its clients make of a store: shards, their names, and when they are removed. All
// processes of a run have the same.
const Format = 1

// Connect introduces this process to the index at the other end of stream. stream is closed with the client,
// or if Connect fails. timeout is how long an answer may take until the index has told the run's.
func Connect(stream io.ReadWriteCloser, hello wire.Hello, timeout time.Duration) (*Client, error) {
	c := &Client{hello: hello}
	c.Conn = wire.NewConn(stream, timeout, c.released)
	if err := c.Call(wire.OpHello, &hello, &c.welcome); err != nil {
		return nil, errors.Join(fmt.Errorf("the index of the job's files does not take this process: %w", err), c.Close())
	}
	if c.welcome.Timeout > 0 {
		c.SetTimeout(c.welcome.Timeout)
	}
	return c, nil
}

// Partitions returns how many partitions the store has, after as many as are missing to n have been made.
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

// Goodbye takes leave of the index, so that it does not take this process for one that was killed, and closes the connection.
func (c *Client) Goodbye() error {
	return errors.Join(c.Call(wire.OpGoodbye, nil, nil), c.Close())
}

// released removes shards. Those that come before there is a file system are released again, see FS.tellShards.
func (c *Client) released(list []wire.Shard) {
	if fs := c.fs.Load(); fs != nil {
		fs.remove(list)
	}
}
