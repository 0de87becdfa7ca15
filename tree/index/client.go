package index

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/google/uuid"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// A client is one connection.
type client struct {
	x      *Index
	stream io.ReadWriteCloser
	peer   *wire.Peer

	// The fields below are guarded by Index.mu.
	ready     bool // Hello was answered
	ended     bool // after Goodbye, or the end of the connection
	partition uint32
	pid       uint32
	host      string
	cred      microfs.Cred
	files     map[microfs.Ino]*session
	locks     int          // number of locked ranges
	queue     []wire.Shard // shards that the client has to remove
	queued    int64        // approximate bytes in queue

	file   wire.File // scratch for answers
	data   []byte
	ranges []microfs.Range
}

// serve answers requests until the connection ends.
func (c *client) serve() error {
	for {
		op, err := c.peer.Next()
		if ended(err) {
			return nil
		}
		if err != nil {
			return err
		}
		err = c.answer(op)
		if op == wire.OpGoodbye || ended(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// ended reports whether an error is the end of a connection: of its client, of the client's host, or because it was
// closed here.
func ended(err error) bool {
	var errno syscall.Errno
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, net.ErrClosed) || errors.As(err, &errno)
}

// answer answers one request. The error ends the connection.
func (c *client) answer(op wire.Op) error {
	r := newCall(op)
	if r == nil {
		return c.peer.Answer(fmt.Errorf("the index does not know %v: %w", op, syscall.EOPNOTSUPP), nil, nil)
	}
	body, _ := r.(wire.Body)
	if err := c.peer.Body(body); err != nil {
		return err
	}
	if c.ready == (op == wire.OpHello) {
		return fmt.Errorf("%v where Hello has to come first, and once", op)
	}
	if op == wire.OpLeave {
		c.told(op, r)
		return nil
	}
	answer, list, err := c.x.perform(c, op, r)
	if err == errClosed || err == net.ErrClosed {
		return err
	}
	return c.peer.Answer(err, list, answer)
}

// perform runs a call, with the lock if the call needs it.
func (x *Index) perform(c *client, op wire.Op, r call) (body wire.Body, list []wire.Shard, err error) {
	if x.crashed.Load() {
		return nil, nil, syscall.EIO
	}
	defer func() {
		if r := recover(); r != nil {
			body, list, err = nil, nil, x.crash(op.String(), r)
		}
	}()
	if r, ok := r.(interface{ before(c *client) error }); ok {
		if err := r.before(c); err != nil {
			return nil, nil, err
		}
	}
	return x.do(c, r)
}

// told runs a call that has no answer.
func (c *client) told(op wire.Op, r call) {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	if c.ended || c.x.crashed.Load() {
		return
	}
	if _, err := r.run(c); err != nil {
		c.x.opts.Logf("%v of process %d: %v", op, c.pid, err)
	}
}

// check checks the Hello of a client.
func (c *client) check(h *wire.Hello) error {
	o := &c.x.opts
	switch {
	case h.Run != o.Run:
		return fmt.Errorf("process %d is of run %v, and the index serves run %v: %w", h.PID, h.Run, o.Run, syscall.ESTALE)
	case h.Format != o.Format:
		return fmt.Errorf("process %d knows version %d of the store's format, and the store has %d; use one build of nvmecr in the whole job: %w",
			h.PID, h.Format, o.Format, syscall.EPROTO)
	}
	return nil
}

// register makes the client the one of its partition. An earlier client of the partition has lost it, or has died
// unnoticed: it ends. A reconnecting client has lost the partition if it has another client by now, or if this index
// has closed its connection.
func (c *client) register(h *wire.Hello) error {
	x := c.x
	if h.Before == x.id || h.Before != uuid.Nil && x.places[h.Partition] != nil {
		return fmt.Errorf("process %d is no longer that of partition %d: %w", h.PID, h.Partition, syscall.ESTALE)
	}
	c.ready, c.partition, c.pid, c.host, c.cred = true, h.Partition, h.PID, h.Host, h.Cred
	x.cred = nil
	if c.partition == wire.NoPartition {
		return nil
	}
	if before := x.places[c.partition]; before != nil {
		_ = before.stream.Close()
		x.end(before)
	}
	x.places[c.partition] = c
	return nil
}

// goodbye closes the client's files in order. The client removes released shards while it still has its partition.
func (c *client) goodbye() {
	for _, s := range c.files {
		_ = c.x.drop(s, s.opens, s.writers, false) // clients that need the error close files themselves
	}
	c.sendReleases()
	c.forget()
}

// end closes the files of a client that ended without Goodbye, and adopts its data.
func (x *Index) end(c *client) {
	if c.ended || x.closed {
		c.forget()
		return
	}
	a := &adoption{partition: c.partition, files: map[microfs.Ino]uint64{}, done: make(chan struct{})}
	for ino, s := range c.files {
		if s.writers > 0 && s.file.named() {
			a.files[ino] = s.file.birth
		}
		_ = x.drop(s, s.opens, s.writers, true) // there is no client to report to
	}
	c.forget()
	if c.partition != wire.NoPartition && len(a.files) > 0 && x.opts.Adopt != nil {
		x.begin(a)
	}
}

// forget removes the client from the lists.
func (c *client) forget() {
	x := c.x
	c.ended = true
	clear(c.files)
	delete(x.clients, c)
	if x.places[c.partition] == c {
		delete(x.places, c.partition)
	}
	if x.cred == c {
		x.cred = nil
	}
}
