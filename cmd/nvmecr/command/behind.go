package command

import "io"

// A behindWriter writes the data of WriteAt calls in a goroutine of its own, in the same order, so that the caller reads the next bytes
// meanwhile. Large writes are made by the caller, without a copy of the data. It is not safe for concurrent use.
type behindWriter struct {
	to    io.WriterAt
	err   error       // of a large write
	next  part        // filled by WriteAt
	full  chan part   // to the goroutine
	empty chan []byte // from the goroutine
	done  chan error  // result of the goroutine
}

// A part is contiguous bytes of a file.
type part struct {
	off  int64
	data []byte
}

// Number and size of the buffers of a behindWriter. One is filled while another one is written. A large write has several commands in
// flight.
const (
	behindBuffers = 2
	behindSize    = 4 << 20
	behindDirect  = 1 << 20 // least length of a large write
)

// writeBehind returns a writer to a file of the given size. The caller has to call Close, which returns an error unless all was written.
func writeBehind(to io.WriterAt, size int64) *behindWriter {
	w := &behindWriter{to: to, full: make(chan part, behindBuffers), empty: make(chan []byte, behindBuffers), done: make(chan error, 1)}
	for range behindBuffers {
		w.empty <- make([]byte, 0, min(behindSize, max(size, 1)))
	}
	go func() { w.done <- w.write() }()
	return w
}

// write writes parts until there are no more, or one fails.
func (w *behindWriter) write() error {
	for p := range w.full {
		if _, err := w.to.WriteAt(p.data, p.off); err != nil {
			return err
		}
		w.empty <- p.data[:0]
	}
	return nil
}

// WriteAt implements io.WriterAt. It may return the error of an earlier call.
func (w *behindWriter) WriteAt(p []byte, off int64) (n int, err error) {
	if len(p) >= behindDirect {
		if w.err == nil {
			w.err = w.flush()
		}
		if w.err == nil {
			n, w.err = w.to.WriteAt(p, off)
		}
		return n, w.err
	}
	for n < len(p) {
		at := off + int64(n)
		if len(w.next.data) == cap(w.next.data) || at != w.next.off+int64(len(w.next.data)) {
			w.hand()
		}
		if w.next.data == nil {
			if w.next.data, err = w.buffer(); err != nil {
				return n, err
			}
			w.next.off = at
		}
		have := len(w.next.data)
		m := min(cap(w.next.data)-have, len(p)-n)
		w.next.data = append(w.next.data, p[n:n+m]...)
		n += m
	}
	return n, nil
}

// buffer returns an empty buffer once there is one.
func (w *behindWriter) buffer() ([]byte, error) {
	select {
	case b := <-w.empty:
		return b, nil
	case err := <-w.done:
		w.done <- err // for Close
		return nil, err
	}
}

// flush waits until the goroutine has written what it was given.
func (w *behindWriter) flush() error {
	w.hand()
	for range behindBuffers {
		b, err := w.buffer()
		if err != nil {
			return err
		}
		defer func() { w.empty <- b }()
	}
	return nil
}

// hand passes the filled part to the goroutine. The channel always has room for the part.
func (w *behindWriter) hand() {
	if len(w.next.data) > 0 {
		w.full <- w.next
		w.next.data = nil
	}
}

// Close waits until all is written, and returns the first error.
func (w *behindWriter) Close() error {
	w.hand()
	close(w.full)
	if err := <-w.done; err != nil {
		return err
	}
	return w.err
}
