package jsonrpc

import (
	"encoding/json"
	"fmt"
	"io"
)

// stream is a connection as a sequence of messages.
type stream struct {
	w       io.Writer
	limited *io.LimitedReader
	d       *json.Decoder
}

func newStream(c io.ReadWriter) *stream {
	l := &io.LimitedReader{R: c}
	return &stream{w: c, limited: l, d: json.NewDecoder(l)}
}

func (s *stream) send(message any) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = s.w.Write(b)
	return err
}

func (s *stream) receive(message any) error {
	s.limited.N = MaxMessage
	err := s.d.Decode(message)
	if err != nil && s.limited.N <= 0 {
		return fmt.Errorf("a message of more than %d bytes", MaxMessage)
	}
	return err
}
