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

	mu     sync.Mutex // held during a call; guards the fields below
	stream io.ReadWriteCloser
	in     *bufio.Reader // of stream
	number uint64
	codec  codec
	buf    []byte
	list   []Shard
	gone   error
	ended  bool // failed because the index ended or closed the connection
}

// NewConn returns the client's end of a connection on which nothing was sent yet.
//
// If stream has a method SetDeadline, as net.Conn does, a call fails after the time-out. If it has a method
// SetTimeout, that is called once instead. Otherwise stream has its own limits. released, unless nil, is called with
// the shards that the client has to remove, before the call whose answer has them returns and before any other call.
// It must not make calls.
//
// If stream has a method Window, that returns memory shared with the peer until stream is closed, of MaxData bytes or
// more, or nil. The data of messages is passed through this memory. The index's end uses it, too (Peer.Share).
func NewConn(stream io.ReadWriteCloser, timeout time.Duration, released func([]Shard)) *Conn {
	c := &Conn{stream: stream, in: bufio.NewReaderSize(stream, bufferSize), released: released}
	c.limit(timeout)
	if s, ok := stream.(interface{ Window() []byte }); ok {
		c.codec.window = s.Window()
	}
	return c
}

// SetTimeout sets the time-out of later calls.
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

// Call sends a request, waits for the answer, and fills answer; either body may be nil if the operation has none. The
// error is that of the index: a syscall.Errno, a *microfs.EscapeError or an *Error; or ErrGone; or an error about a
// request that is too long to be sent.
func (c *Conn) Call(op Op, request, answer Body) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, err := c.send(op, request)
	if err != nil {
		return err
	}
	answered, gone := c.receive(h, answer)
	if gone != nil {
		return c.lose(op, gone)
	}
	return answered
}

// Tell sends a request that has no answer. The error is ErrGone.
func (c *Conn) Tell(op Op, request Body) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.send(op, request)
	return err
}

// Close closes the connection. Later calls fail.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone != nil {
		return nil // already closed: its descriptor may have been reused
	}
	c.gone = ErrGone
	return c.stream.Close()
}

// Ended reports whether the connection has failed because the index has ended, or has closed it.
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

// Idle reports whether there is no unexpected input, such as the end of the connection. It is always true if stream
// has no method Idle.
func (c *Conn) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.stream.(interface{ Idle() bool })
	return !ok || c.in.Buffered() == 0 && s.Idle()
}

func (c *Conn) fail(err error) {
	c.gone = err
	_ = c.stream.Close() // has failed already
}

// send sends a request.
func (c *Conn) send(op Op, request Body) (h header, err error) {
	if c.gone != nil {
		return h, c.gone
	}
	c.number++
	h = header{kind: kindRequest, op: op, number: c.number}
	if c.buf, err = c.codec.encode(c.buf, &h, nil, request); err != nil {
		return h, fmt.Errorf("%v: %w", op, err)
	}
	if s, ok := c.stream.(interface{ SetDeadline(time.Time) error }); ok && c.timeout > 0 {
		if err := s.SetDeadline(time.Now().Add(c.timeout)); err != nil {
			return h, c.lose(op, err)
		}
	}
	if _, err := c.stream.Write(c.buf); err != nil {
		return h, c.lose(op, err)
	}
	return h, nil
}

// lose records that the connection has failed during a request.
func (c *Conn) lose(op Op, gone error) error {
	c.ended = endedBy(gone)
	c.fail(fmt.Errorf("%w (%v: %v)", ErrGone, op, gone))
	return c.gone
}

// receive receives the answer to a request. err is the error of the index, gone that of the connection.
func (c *Conn) receive(h header, answer Body) (err, gone error) {
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
