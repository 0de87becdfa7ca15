package target

// A host that reads sequentially, one command at a time, waits while the kernel copies
// uncached memory into the socket. Between the commands the thread of the connection
// only polls the socket: so it prefetches the data after the last read into its cache.
// A prefetch of a missing page does not fault.

const (
	// readAhead is the number of bytes that are prefetched after a read. They have to fit the cache
	// of a core beside other data.
	readAhead = 128 << 10
	// readAheadStep is the number of bytes that are prefetched between two polls of the socket.
	// That takes about as long as a poll.
	readAheadStep = 4 << 10
)

// readahead is what a host is likely to read next.
type readahead struct {
	end  int64  // of the last read
	next []byte // not prefetched yet
}

// read notes a read of memory.
func (r *readahead) read(memory []byte, offset, end int64) {
	r.next = nil
	if offset == r.end {
		r.next = memory[end:min(end+readAhead, int64(len(memory)))]
	}
	r.end = end
}

// step prefetches the next bytes.
func (r *readahead) step() {
	if n := min(len(r.next), readAheadStep); n > 0 {
		prefetch(&r.next[0], uintptr(n))
		r.next = r.next[n:]
	}
}
