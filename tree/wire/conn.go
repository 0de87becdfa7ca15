package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"
)

// A Conn is a client's end of a connection.
type Conn struct {
	timeout  time.Duration
	released func([]Shard)

	mu     sync.Mutex // held during a call; guards what follows
	stream io.ReadWriteCloser
	in     *bufio.Reader // of stream
	number uint64
	codec  codec
	buf    []byte
	list   []Shard
	gone   error
	ended  bool // gone, by the index's end
}

// NewConn returns the client's end of a connection, on which nothing was sent yet.
//
// A call fails after the time-out if stream has a method SetDeadline, as net.Conn does. A stream with a method SetTimeout is
// told it once, instead of before each call. Otherwise the stream's own limits count. released is called with the shards that the client is to remove, before
// the call returns whose answer has them, and before any other call is made: it must not make one. It may be nil.
//
// Where stream has a method Window, that is memory which both ends have until stream is closed: MaxData bytes, or more, by way of which the data of messages
// go; or nil. The index's end has it, too (Peer.Share).
func NewConn(stream io.ReadWriteCloser, timeout time.Duration, released func([]Shard)) *Conn {
	c := &Conn{stream: stream, in: bufio.NewReaderSize(stream, usualSize), released: released}
	c.limit(timeout)
	if s, ok := stream.(interface{ Window() []byte }); ok {
		c.codec.window = s.Window()
	}
	return c
}

// SetTimeout sets the time-out of the calls that follow.
func (c *Conn) SetTimeout(timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit(timeout)
}

func (c *Conn) limit(timeout time.Duration) {
	c.timeout = timeout
	if s, ok := c.stream.(interface{ SetTimeout(time.Duration) error }); ok {
		if err := s.SetTimeout(timeout); err != nil {
			c.fail(fmt.Errorf("%w (time-out: %v)", ErrGone, err))
		}
	}
}

// Call asks, waits for the answer, and fills answer; either may be nil where the operation has no such body.
// The error is the index's: a syscall.Errno, a *microfs.EscapeError or an *Error; or ErrGone. A request that
// cannot be sent, since it is too long, is another one.
func (c *Conn) Call(op Op, request, answer Body) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone != nil {
		return c.gone
	}
	c.number++
	h := header{kind: kindRequest, op: op, number: c.number}
	var err error
	if c.buf, err = c.codec.encode(c.buf, &h, nil, request); err != nil {
		return fmt.Errorf("%v: %w", op, err)
	}
	answered, gone := c.exchange(h, answer)
	if gone != nil {
		c.ended = endedBy(gone)
		c.fail(fmt.Errorf("%w (%v: %v)", ErrGone, op, gone))
		return c.gone
	}
	return answered
}

// Close closes the connection. Calls that follow fail.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone != nil {
		return nil // it is closed, and its descriptor may have been reused
	}
	c.gone = ErrGone
	return c.stream.Close()
}

// Ended says that the connection has failed because the index has ended, or has ended the connection.
func (c *Conn) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func endedBy(err error) bool {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// Idle says whether nothing has come that was not asked for, as the end of the connection is. It knows where stream has a method of that name.
func (c *Conn) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.stream.(interface{ Idle() bool })
	return !ok || c.in.Buffered() == 0 && s.Idle()
}

func (c *Conn) fail(err error) {
	c.gone = err
	_ = c.stream.Close() // which has failed already
}

// exchange sends the request in c.buf and takes the answer. err is the index's, gone the connection's.
func (c *Conn) exchange(h header, answer Body) (err, gone error) {
	if s, ok := c.stream.(interface{ SetDeadline(time.Time) error }); ok && c.timeout > 0 {
		if err := s.SetDeadline(time.Now().Add(c.timeout)); err != nil {
			return nil, err
		}
	}
	if _, err := c.stream.Write(c.buf); err != nil {
		return nil, err
	}
	got, b, err := receive(c.in, c.buf, kindAnswer)
	c.buf = b
	switch {
	case err != nil:
		return nil, unexpected(err)
	case got.op != h.op || got.number != h.number:
		return nil, fmt.Errorf("the answer to %v, number %d: %w", got.op, got.number, errProtocol)
	}
	return c.take(got, answer)
}

// take decodes the answer in c.buf.
func (c *Conn) take(h header, answer Body) (err, gone error) {
	d := &c.codec
	d.read(c.buf[headerSize:])
	d.releases(&c.list)
	switch {
	case h.errno != 0:
		var f failure
		f.fields(d)
		err = f.err(h.errno)
	case answer != nil:
		answer.fields(d)
	}
	if gone := d.end(); gone != nil {
		return nil, gone
	}
	if len(c.list) > 0 && c.released != nil {
		c.released(c.list)
	}
	return err, nil
}
