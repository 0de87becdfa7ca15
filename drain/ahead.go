package drain

// aheadSize is the number of bytes of one read ahead. It is several commands of a device, which are in flight together.
const aheadSize = 4 << 20

// A readAhead is a file that is read in order: a goroutine reads the next block while the caller uses the present one.
// One goroutine at a time may call it. Work with a low priority must not use it, since that goroutine has the normal
// priority.
type readAhead struct {
	file
	size int64 // of the file
	next int64 // where a read in order begins

	have   []byte   // the present block
	at     int64    // its offset
	spare  []byte   // the goroutine's buffer, while coming is not nil
	coming chan int // gets the length of the block that is being read, 0 if it cannot be read; nil: none is
	behind int64    // the offset of that block

	failed int64 // the end of the last block that could not be read: up to there nothing is read ahead
}

func newReadAhead(f file, size int64) *readAhead { return &readAhead{file: f, size: size} }

// block returns bytes of the file from off on, at most up to end, where a hole may begin. They are valid until the next call. Nothing is read
// ahead for a short range: the holes around it may be large.
func (r *readAhead) block(off, end int64) ([]byte, error) {
	wanted := end-off > blockSize || r.coming != nil && r.behind == off
	if r.holds(off) || wanted && r.advance(off) {
		b := r.have[off-r.at:]
		b = b[:min(int64(len(b)), end-off)]
		r.next = off + int64(len(b))
		return b, nil
	}
	b := make([]byte, min(end-off, blockSize))
	if n, err := r.file.ReadAt(b, off); n < len(b) {
		return nil, err
	}
	return b, nil
}

// holds reports whether the present block has the byte at off.
func (r *readAhead) holds(off int64) bool { return off >= r.at && off < r.at+int64(len(r.have)) }

// ReadAt implements io.ReaderAt. A block that cannot be read ahead is read again, for the error.
func (r *readAhead) ReadAt(p []byte, off int64) (n int, err error) {
	inOrder := off == r.next
	r.next = off + int64(len(p))
	for n < len(p) {
		at := off + int64(n)
		if r.holds(at) {
			n += copy(p[n:], r.have[at-r.at:])
		} else if !inOrder || !r.advance(at) {
			m, err := r.file.ReadAt(p[n:], at)
			return n + m, err
		}
	}
	return n, nil
}

// advance makes the block at off the present one, and begins to read the block behind it. It returns false if there is
// no such block.
func (r *readAhead) advance(off int64) bool {
	if off < r.failed && off >= r.failed-aheadSize {
		return false
	}
	if r.coming == nil || r.behind != off {
		r.wait()
		r.begin(off)
	}
	n := r.wait()
	if n == 0 {
		r.failed = off + aheadSize
		return false
	}
	r.have, r.at, r.spare = r.spare[:n], off, r.have[:0]
	r.begin(off + int64(n))
	return true
}

func (r *readAhead) begin(off int64) {
	n := min(r.size-off, aheadSize)
	if n <= 0 {
		return
	}
	if int64(cap(r.spare)) < n {
		r.spare = make([]byte, n)
	}
	block, coming := r.spare[:n], make(chan int, 1)
	r.coming, r.behind = coming, off
	go func() {
		n, err := r.file.ReadAt(block, off)
		if err != nil {
			n = 0
		}
		coming <- n
	}()
}

// wait waits for the block that is being read, and returns its length.
func (r *readAhead) wait() (n int) {
	if r.coming != nil {
		n = <-r.coming
		r.coming = nil
	}
	return n
}

// Close implements io.Closer.
func (r *readAhead) Close() error {
	r.wait()
	return r.file.Close()
}
