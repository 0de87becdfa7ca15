package jsonrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"
)

// Client calls the methods of the server at one socket. It is safe for
// concurrent use: calls take turns. It connects when it is first used.
type Client struct {
	path  string
	check func(net.Conn) error // of a new connection, or nil
	turn  chan struct{}        // holds a token while no call is in progress

	// The fields below belong to the holder of the token.

	conn   net.Conn // nil: not connected
	stream *stream
	id     uint64
	closed bool
	once   bool // the first connection is the only one
	lost   bool // a connection was dropped
}

// NewClient returns a client of the server that listens at path.
func NewClient(path string) *Client {
	c := &Client{path: path, turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c
}

// Call calls a method. params is an object, or nil for none; result is where
// its result goes, or nil to drop it. The error is an *Error if the server has
// answered with one.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	select {
	case <-c.turn:
	case <-ctx.Done():
		return fmt.Errorf("%s at %s: waiting for another call: %w", method, c.path, context.Cause(ctx))
	}
	defer func() { c.turn <- struct{}{} }()
	answer, err := c.exchange(ctx, method, params)
	if err != nil {
		c.drop()
		return fmt.Errorf("%s at %s: %w", method, c.path, err)
	}
	if answer.Error != nil {
		answer.Error.Method = method
		return answer.Error
	}
	if result == nil {
		return nil
	}
	if err := decode(answer.Result, result); err != nil {
		return fmt.Errorf("%s at %s: result: %w", method, c.path, err)
	}
	return nil
}

// exchange sends a request and receives its answer.
func (c *Client) exchange(ctx context.Context, method string, params any) (*response, error) {
	used := c.conn != nil
	if err := c.connect(ctx); err != nil {
		return nil, err
	}
	// The end of the context makes the deadline of the connection pass.
	conn := c.conn
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() {
			c.drop() // the connection has missed its deadline
		}
	}()
	c.id++
	id := strconv.AppendUint(nil, c.id, 10)
	r := request{Version: "2.0", Method: method, ID: id}
	if params != nil {
		var err error
		if r.Params, err = json.Marshal(params); err != nil {
			return nil, err
		}
	}
	var answer response
	err := c.stream.send(&r)
	if errors.Is(err, syscall.EPIPE) && used && !c.once && ctx.Err() == nil {
		c.drop() // the server has ended since the last call: it did not get the request
		return c.exchange(ctx, method, params)
	}
	if err == nil {
		err = c.stream.receive(&answer)
	}
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer: %w", context.Cause(ctx))
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return nil, err
	case !bytes.Equal(answer.ID, id) && (answer.Error == nil || len(answer.ID) > 0 && string(answer.ID) != "null"):
		return nil, fmt.Errorf("an answer to call %q, not %s", answer.ID, id)
	case answer.Error == nil && answer.Result == nil:
		return nil, errors.New("an answer without a result")
	}
	return &answer, nil
}

func (c *Client) connect(ctx context.Context) error {
	if c.closed {
		return net.ErrClosed
	}
	if c.conn != nil {
		return nil
	}
	if c.once && c.lost {
		return errors.New("the connection was lost, and what was asked before may not be so any more")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.path)
	if err != nil {
		return err
	}
	if c.check != nil {
		if err := c.check(conn); err != nil {
			return errors.Join(err, conn.Close())
		}
	}
	c.conn, c.stream = conn, newStream(conn)
	return nil
}

// Check makes c call check on every connection before it sends anything. It returns c. It must be called before the
// first call.
func (c *Client) Check(check func(net.Conn) error) *Client {
	c.check = check
	return c
}

// Once makes c use a single connection, so that one process answers all calls. It returns c. It must be called before
// the first call.
func (c *Client) Once() *Client {
	c.once = true
	return c
}

func (c *Client) drop() {
	if c.conn != nil {
		_ = c.conn.Close() // the connection is unusable
		c.conn, c.stream, c.lost = nil, nil, true
	}
}

// Close closes the connection, when the call in progress has ended.
func (c *Client) Close() error {
	<-c.turn
	c.drop()
	c.closed = true
	c.turn <- struct{}{}
	return nil
}

// decode is json.Unmarshal that leaves numbers in an interface as they are.
func decode(b json.RawMessage, to any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(to)
}
