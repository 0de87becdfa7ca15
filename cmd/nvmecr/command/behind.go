package command

import "io"

// A behindWriter writes what WriteAt is given in a goroutine of its own, in the same order, so that its caller reads the next bytes meanwhile.
// One goroutine at a time uses it.
type behindWriter struct {
	next  part        // is filled by WriteAt
	full  chan part   // to the goroutine
	empty chan []byte // back from it
	done  chan error  // what the goroutine ended with
}

// A part is contiguous bytes of a file.
type part struct {
	off  int64
	data []byte
}

// A behindWriter has this many buffers, so that one is filled while another is written, of this size: a large write has several commands
// in flight.
const (
	behindBuffers = 2
	behindSize    = 4 << 20
)

// writeBehind returns a writer to a file of a size. Its Close has to be called, and says whether all was written.
func writeBehind(to io.WriterAt, size int64) *behindWriter {
	w := &behindWriter{full: make(chan part, behindBuffers), empty: make(chan []byte, behindBuffers), done: make(chan error, 1)}
	for range behindBuffers {
		w.empty <- make([]byte, 0, min(behindSize, max(size, 1)))
	}
	go func() { w.done <- w.write(to) }()
	return w
}

// write writes parts until there are no more, or one fails.
func (w *behindWriter) write(to io.WriterAt) error {
	for p := range w.full {
		if _, err := to.WriteAt(p.data, p.off); err != nil {
			return err
		}
		w.empty <- p.data[:0]
	}
	return nil
}

// WriteAt is an io.WriterAt. An error may be that of an earlier call.
func (w *behindWriter) WriteAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		at := off + int64(n)
		if len(w.next.data) == cap(w.next.data) || at != w.next.off+int64(len(w.next.data)) {
			w.hand()
		}
		if w.next.data == nil {
			select {
			case w.next.data = <-w.empty:
				w.next.off = at
			case err = <-w.done:
				w.done <- err // for Close
				return n, err
			}
		}
		have := len(w.next.data)
		m := min(cap(w.next.data)-have, len(p)-n)
		w.next.data = append(w.next.data, p[n:n+m]...)
		n += m
	}
	return n, nil
}

// hand gives the part that is filled to the goroutine. There is always room for it.
func (w *behindWriter) hand() {
	if len(w.next.data) > 0 {
		w.full <- w.next
		w.next.data = nil
	}
}

// Close waits until all is written, and returns the first error of that.
func (w *behindWriter) Close() error {
	w.hand()
	close(w.full)
	return <-w.done
}
