package wire

import (
	"bufio"
	"fmt"
	"io"
)

// A Peer is the index's end of a connection.
type Peer struct {
	stream  io.ReadWriter
	in      *bufio.Reader // of stream
	codec   codec
	buf     []byte
	list    []Shard
	request header
}

// NewPeer returns the index's end of a connection. The caller closes stream.
func NewPeer(stream io.ReadWriter) *Peer {
	return &Peer{stream: stream, in: bufio.NewReaderSize(stream, bufferSize)}
}

// Share makes the data of messages pass through shared memory, of MaxData bytes or more.
func (p *Peer) Share(window []byte) { p.codec.window = window }

// Next waits for a request and returns its operation. io.EOF: the client has closed the connection.
func (p *Peer) Next() (Op, error) {
	h, b, err := receive(p.in, p.buf, kindRequest)
	p.buf, p.request = b, h
	return h.op, err
}

// Body decodes the body of the request. It does not refer to memory of the peer, except for data in shared memory,
// which is valid until the answer.
func (p *Peer) Body(body Body) error {
	p.codec.read(p.buf[headerSize:])
	if body != nil {
		body.fields(&p.codec)
	}
	if err := p.codec.end(); err != nil {
		return fmt.Errorf("%v: %w", p.request.op, err)
	}
	return nil
}

// Answer answers the request: with err, or if that is nil with body, which may be nil; and with at most MaxReleases
// shards that the client has to remove.
func (p *Peer) Answer(err error, list []Shard, body Body) error {
	h := header{kind: kindAnswer, op: p.request.op, number: p.request.number}
	if err != nil {
		errno, f := failed(err)
		h.errno, body = errno, &f
	}
	p.list = list
	b, err := p.codec.encode(p.buf, &h, &p.list, body)
	p.buf = b
	if err != nil {
		return fmt.Errorf("answer to %v: %w", h.op, err)
	}
	_, err = p.stream.Write(b)
	return err
}
