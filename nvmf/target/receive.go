package target

import (
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf/pdu"
)

// receiver parses the byte stream of a connection.
//
// Headers are received into a small buffer. Data is received at its destination without a copy: the
// first piece of a recvmsg is the destination, the second one the buffer, for what follows. Data
// that arrived in the buffer together with its header is copied. To keep that small, the buffer
// asks only for the length of a header while large data is coming.
type receiver struct {
	rules  pdu.Rules
	buffer []byte // bytes from head to tail are not parsed yet
	head   int
	tail   int

	phase  phase
	header pdu.Header
	slot   uint16 // command whose data is coming
	left   int    // bytes of it
	// place is where the rest of the data goes: a part of the namespace's
	// memory (straight), of command.into, or of bounce; nil to drop it.
	place    []byte
	straight bool // place is memory that only the kernel may touch
	bounced  bool // place is bounce, which still has to be written
	bounce   []byte
	digest   uint32 // that came behind the data

	stalled bool // a command waits for a slot, for answers to be sent, or for a rate limit
	ahead   int  // bytes of header to ask for while large data is coming, else 0

	// offending keeps the header for a TermReq.
	offending    [pdu.MaxTermReqData]byte
	offendingLen int

	msg unix.Msghdr
	iov [2]unix.Iovec
}

// phase is the part of a PDU that comes next.
type phase uint8

const (
	inHeader phase = iota
	inData
	inDigest
)

// largeData is the size from which data is worth a system call of its own. For 4 KiB that saves 3
// us, as measured.
const largeData = 1 << 10

// adminCapsule is the in-capsule data of the admin queue, of any queue before
// Connect, and of Fabrics commands: fixed by the transport specification.
const adminCapsule = 8192

func (r *receiver) init(inCapsule uint32) {
	r.buffer = make([]byte, 16<<10)
	r.rules = pdu.Rules{FromHost: true, MaxData: maxTransfer, MaxCapsuleData: adminCapsule}
	r.msg.Iov = &r.iov[0]
}

func (r *receiver) inData() bool { return r.phase == inData }

// partial reports whether a PDU has begun and not ended.
func (r *receiver) partial() bool { return r.phase != inHeader || r.head != r.tail }

// receive reads from the socket, with at most one system call. moved reports whether there were any
// bytes.
func (c *conn) receive() (moved bool, err error) {
	r := &c.in
	if r.stalled {
		if c.paused() || c.full() && c.out.pending() {
			return false, nil
		}
		r.stalled = false
		return true, c.parse()
	}
	var n int
	var errno syscall.Errno
	switch {
	case r.phase == inData && r.place != nil:
		n, errno = c.receiveData()
	default:
		r.compact()
		n, errno = recv(c.fd, r.buffer[r.tail:r.tail+r.wanted()], c.brief())
		if errno == 0 {
			r.tail += n
		}
	}
	switch {
	case again(errno):
		return false, nil
	case errno != 0:
		return false, fmt.Errorf("receive: %w", errno)
	case n == 0:
		return false, io.EOF
	case n < 0: // receiveData has handled it
		return true, nil
	}
	return true, c.parse()
}

// wanted returns the number of bytes to ask for into the buffer.
func (r *receiver) wanted() int {
	n := len(r.buffer) - r.tail
	if r.ahead > 0 && r.phase == inHeader && r.tail-r.head < r.ahead {
		n = min(n, r.ahead-(r.tail-r.head))
	}
	return n
}

// compact makes space in the buffer behind a partial header.
func (r *receiver) compact() {
	if r.head == r.tail {
		r.head, r.tail = 0, 0
	} else if len(r.buffer)-r.head < pdu.MaxHeaderSize || len(r.buffer) == r.tail {
		r.tail = copy(r.buffer, r.buffer[r.head:r.tail])
		r.head = 0
	}
}

// receiveData receives data into place, and what follows the data into the buffer, which is empty.
// n is -1 if the memory of place is missing.
func (c *conn) receiveData() (n int, errno syscall.Errno) {
	r := &c.in
	r.head, r.tail = 0, 0
	follows := len(r.buffer)
	if r.ahead > 0 {
		follows = r.ahead
	}
	if r.header.Digest {
		follows += pdu.DigestSize
	}
	r.iov[0].Base, r.iov[0].Len = &r.place[0], uint64(len(r.place))
	r.iov[1].Base, r.iov[1].Len = &r.buffer[0], uint64(min(follows, len(r.buffer)))
	r.msg.Iovlen = 2
	n, errno = recvmsg(c.fd, &r.msg, c.brief())
	if errno == unix.EFAULT && r.straight {
		m := &c.commands[r.slot]
		m.status = c.explain(m)
		r.place = nil
		return -1, 0
	}
	if errno != 0 {
		return 0, errno
	}
	if n < r.left {
		r.place, r.left = r.place[n:], r.left-n
	} else {
		r.tail = n - r.left
		r.place, r.left = nil, 0
	}
	return n, 0
}

// aim chooses the destination of the data of a command that comes next.
func (r *receiver) aim(c *conn, slot uint16, n uint32) {
	m := &c.commands[slot]
	r.slot, r.straight, r.bounced, r.place = slot, false, false, nil
	switch {
	case m.status != 0:
	case m.into != nil:
		r.place = m.into[m.received : m.received+n]
	case m.at.memory != nil && !r.rules.DataDigest:
		start := m.offset + int64(m.received)
		r.place, r.straight = m.at.memory[start:start+int64(n)], true
	default:
		if len(r.bounce) < int(n) {
			r.bounce = make([]byte, maxTransfer)
		}
		r.place, r.bounced = r.bounce[:n], true
	}
}

// parse parses what is in the buffer.
func (c *conn) parse() error {
	r := &c.in
	for {
		switch r.phase {
		case inHeader:
			more, err := c.parseHeader()
			if err != nil || !more {
				return err
			}
		case inData:
			n := min(r.left, r.tail-r.head)
			c.take(r.buffer[r.head : r.head+n])
			r.head += n
			r.left -= n
			if r.left > 0 {
				return nil
			}
			r.phase = inDigest
			if r.header.Digest {
				continue
			}
			c.finishPDU(true)
		case inDigest:
			if r.tail-r.head < pdu.DigestSize {
				return nil
			}
			b := r.buffer[r.head:]
			r.digest = uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
			r.head += pdu.DigestSize
			c.finishPDU(c.verify())
		}
	}
}

// parseHeader begins a PDU if its header is complete, which more reports.
func (c *conn) parseHeader() (more bool, err error) {
	r := &c.in
	b := r.buffer[r.head:r.tail]
	if len(b) < pdu.CommonSize {
		return false, nil
	}
	h, err := r.rules.Common(b)
	need := h.Size()
	if err == nil && h.Data > 0 {
		need = int(h.Offset)
	}
	if err == nil && len(b) < need {
		return false, nil
	}
	if err == nil {
		err = r.rules.Header(h, b)
	}
	if err == nil && h.Type == pdu.TypeCapsuleCmd && (c.paused() || c.queued(pdu.SQEOf(b))) {
		r.stalled = true
		return false, nil
	}
	if err == nil && h.Type == pdu.TypeCapsuleCmd && c.full() {
		// The host may have received answers of commands whose slots are not free yet.
		if r.stalled = c.out.pending(); r.stalled {
			return false, nil
		}
		err = pdu.Violation(pdu.SequenceError, 0, "more than %d commands on queue %d", len(c.commands), c.qid)
	}
	if err == nil {
		r.head += need
		r.header, r.left, r.ahead = h, int(h.Data), 0
		if h.Data >= largeData {
			r.ahead = need
		}
		err = c.dispatch(h, b)
	}
	if err != nil {
		r.offendingLen = copy(r.offending[:], b[:min(len(b), max(need, pdu.CommonSize))])
		return false, err
	}
	if h.Data > 0 {
		r.phase = inData
	}
	return true, nil
}

// dispatch handles a complete header.
func (c *conn) dispatch(h pdu.Header, b []byte) error {
	if !c.initialised && h.Type != pdu.TypeICReq {
		return pdu.Violation(pdu.SequenceError, 0, "%s before ICReq", h.Type)
	}
	switch h.Type {
	case pdu.TypeICReq:
		if c.initialised {
			return pdu.Violation(pdu.SequenceError, 0, "a second ICReq")
		}
		return c.initialise(pdu.ICOf(b))
	case pdu.TypeCapsuleCmd:
		c.begin(h, pdu.SQEOf(b))
		return nil
	case pdu.TypeH2CData:
		return c.h2c(h, pdu.DataOf(b))
	default: // H2CTermReq, the only other one from a host
		t := pdu.TermReqOf(b)
		return fmt.Errorf("the host ended the connection: %s, field %d", t.FES, t.FEI)
	}
}

// take stores data that came into the buffer.
func (c *conn) take(b []byte) {
	r := &c.in
	if r.place == nil || len(b) == 0 {
		return
	}
	if r.straight {
		m := &c.commands[r.slot]
		at := m.offset + int64(m.received) + int64(r.header.Data) - int64(r.left)
		if m.status = c.statusOf(m, m.at.backing.WriteAt(b, at)); m.status != 0 {
			r.place = nil
			return
		}
	} else {
		copy(r.place, b)
	}
	if r.place = r.place[len(b):]; len(r.place) == 0 {
		r.place = nil
	}
}

// verify compares the digest of the data with the received one. Dropped data cannot be verified and
// need not be.
func (c *conn) verify() bool {
	r := &c.in
	m := &c.commands[r.slot]
	n := r.header.Data
	switch {
	case m.status != 0:
		return true
	case r.bounced:
		return pdu.Digest(0, r.bounce[:n]) == r.digest
	}
	return pdu.Digest(0, m.into[m.received:m.received+n]) == r.digest
}

// finishPDU passes on the data of a complete PDU.
func (c *conn) finishPDU(digestOK bool) {
	r := &c.in
	r.phase = inHeader
	c.arrived(r.slot, r.header.Data, digestOK)
}

// initialise answers ICReq: whatever digests the host wants, no alignment.
func (c *conn) initialise(req pdu.IC) error {
	var b [pdu.ICSize]byte
	digests := req.Digest & (pdu.EnableHeaderDigest | pdu.EnableDataDigest)
	pdu.PutICResp(b[:], 0, digests, maxTransfer)
	if n, err := unix.SendmsgN(c.fd, b[:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil || n < len(b) {
		return fmt.Errorf("send ICResp: %w", err) // the socket was empty: it always fits
	}
	c.initialised = true
	hd, dd := digests&pdu.EnableHeaderDigest != 0, digests&pdu.EnableDataDigest != 0
	c.in.rules.HeaderDigest, c.in.rules.DataDigest = hd, dd
	c.out.rules = pdu.Rules{HeaderDigest: hd, DataDigest: dd, Align: pdu.Alignment(req.PDA), MaxData: maxTransfer}
	return nil
}
