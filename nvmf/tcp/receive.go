package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// PDUs are received into a small buffer. While the data of a C2HData is arriving,
// the system call receives it directly into the caller's memory, and the bytes after
// it, with the next header, into the small buffer.
//
// If only large reads are in flight, the first header needs no system call of its own
// either. The target is likely to answer the oldest read next, with all data in one
// PDU. So the system call receives one header into the buffer, and the bytes after it
// into the memory of that read. If the guess was wrong, the received bytes are copied
// to a larger buffer in their order, and the connection does not guess again.

const (
	// bufferSize is enough for the data of a 4 KiB read and its headers, so that one
	// system call receives them. Copying the data costs less than a second call.
	bufferSize = 4096 + 512
	// largeRead is the size above which data should not go through the buffer. While
	// larger reads are in flight, only lookAhead bytes are received into the buffer:
	// a response and a header.
	largeRead = 8192
	lookAhead = 2 * (pdu.DataSize + 2*pdu.DigestSize)
)

type receiver struct {
	buf  []byte
	r, w int // buf[r:w] was received and is not parsed yet

	msg unix.Msghdr
	iov []unix.Iovec

	large int // reads in flight larger than largeRead

	// next is the slot of the read that is likely to be answered next. guessed is the
	// number of bytes of its memory that the current system call may receive into.
	next    uint16
	guess   bool
	guessed int
	wrong   bool // a guess was wrong: the connection does not guess again

	// The C2HData that is being received: the padding and data still to come, and the
	// digest so far.
	state int
	hdr   pdu.Header
	cid   uint16
	pad   int
	left  uint32
	crc   uint32
}

// States of the receiver.
const (
	atHeader = iota
	inPadding
	inData
	atDigest
)

func (v *receiver) init() {
	v.buf = make([]byte, bufferSize)
	v.iov = make([]unix.Iovec, 0, 64)
}

// receive does one system call and handles the received bytes. It returns false if
// there were none.
func (c *conn) receive() bool {
	v := &c.recv
	direct := c.vectors()
	v.msg.Iov = &v.iov[0]
	v.msg.SetIovlen(len(v.iov))
	n, errno := recvmsg(c.fd, &v.msg)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return false
	case errno != 0:
		c.lose(fmt.Errorf("receiving: %w", errno))
		return false
	case n == 0:
		c.lose(fmt.Errorf("receiving: the target closed the connection: %w", io.ErrUnexpectedEOF))
		return false
	}
	switch {
	case v.guessed > 0:
		c.compare(n)
	case direct > 0:
		got := min(n, direct)
		c.arrived(got)
		v.w += n - got
	default:
		v.w += n
	}
	c.parse()
	return true
}

// guessHeader is the size of the header that a guess expects: without a digest, and
// without padding.
const guessHeader = pdu.DataSize

// guessNext lists buffers for the answer of the next read: space for the header, the
// memory of the read, and space for the bytes after it. It returns false, and lists
// nothing, unless only large reads are in flight, no digests are used, and no guess
// was wrong.
func (c *conn) guessNext() bool {
	v := &c.recv
	if !v.guess || v.wrong || v.w > 0 || c.busy != v.large || c.rx.HeaderDigest || c.rx.DataDigest {
		return false
	}
	s := c.slot(v.next)
	if s == nil || s.write || s.moved > 0 {
		v.guess = false
		return false
	}
	v.add(v.buf[:guessHeader])
	k := cursor{}
	for left := s.total; left > 0; {
		if len(v.iov) == cap(v.iov)-1 {
			v.iov = v.iov[:0]
			return false
		}
		n := k.rest(s.data, left)
		v.add(k.bytes(s.data, n))
		k.advance(s.data, n)
		left -= uint32(n)
	}
	v.add(v.buf[guessHeader : guessHeader+lookAhead])
	v.guessed = int(s.total)
	return true
}

// compare checks a guess after n bytes were received into its buffers. If the guess
// was right, compare handles the header and the data. Otherwise it copies the bytes
// to a buffer, in the order in which they were received.
func (c *conn) compare(n int) {
	v := &c.recv
	total := v.guessed
	v.guessed = 0
	if n <= guessHeader {
		v.w = n
		return
	}
	v.guess = false
	n -= guessHeader
	data := min(n, total)
	s := &c.slots[v.next]
	h, err := c.rx.Common(v.buf)
	if err == nil && h.Type == pdu.TypeC2HData && int(h.Offset) == guessHeader && int(h.Data) == total &&
		pdu.DataOf(v.buf).CID == v.next && c.takeHeader(v.buf[:guessHeader]) {
		v.r, v.state = 0, inData
		v.w = copy(v.buf, v.buf[guessHeader:guessHeader+n-data])
		c.arrived(data)
		return
	}
	if c.err != nil {
		return
	}
	v.wrong = true
	buf := make([]byte, max(bufferSize, guessHeader+n))
	v.w = copy(buf, v.buf[:guessHeader])
	k := cursor{}
	for left := data; left > 0; {
		m := k.rest(s.data, uint32(left))
		v.w += copy(buf[v.w:], k.bytes(s.data, m))
		k.advance(s.data, m)
		left -= m
	}
	v.w += copy(buf[v.w:], v.buf[guessHeader:guessHeader+n-data])
	v.buf = buf
}

// vectors lists the buffers to receive into, and returns how many of their bytes are
// the caller's memory.
func (c *conn) vectors() (direct int) {
	v := &c.recv
	v.iov = v.iov[:0]
	if v.state == atHeader && c.guessNext() {
		return 0
	}
	if v.state == inData { // the buffer is empty in this state
		s := &c.slots[v.cid]
		k := s.cur
		for left := v.left; left > 0 && len(v.iov) < cap(v.iov)-1; {
			n := k.rest(s.data, left)
			v.add(k.bytes(s.data, n))
			k.advance(s.data, n)
			left -= uint32(n)
			direct += n
		}
		if direct < int(v.left) {
			return direct // more data follows
		}
	}
	free := v.buf[v.w:]
	if v.large > 0 {
		free = free[:min(len(free), lookAhead)]
	}
	v.add(free)
	return direct
}

func (v *receiver) add(b []byte) {
	x := unix.Iovec{Base: &b[0]}
	x.SetLen(len(b))
	v.iov = append(v.iov, x)
}

// arrived updates the state after n bytes of data were received into the caller's memory.
func (c *conn) arrived(n int) {
	v := &c.recv
	s := &c.slots[v.cid]
	for n > 0 {
		m := s.cur.rest(s.data, uint32(n))
		if v.hdr.Digest {
			v.crc = pdu.Digest(v.crc, s.cur.bytes(s.data, m))
		}
		s.cur.advance(s.data, m)
		v.left -= uint32(m)
		n -= m
	}
}

// parse handles all complete parts of PDUs in the buffer.
func (c *conn) parse() {
	v := &c.recv
	for c.err == nil && c.step() {
	}
	if c.err != nil {
		v.r, v.w = 0, 0 // the connection has ended, so the rest is not parsed
		return
	}
	if v.r > 0 { // the rest is an incomplete header
		v.w = copy(v.buf, v.buf[v.r:v.w])
		v.r = 0
	}
}

// step handles one part of a PDU. It returns false if the part is incomplete.
func (c *conn) step() bool {
	v := &c.recv
	have := v.buf[v.r:v.w]
	switch v.state {
	case atHeader:
		return c.takeHeader(have)
	case inPadding:
		n := min(v.pad, len(have))
		v.r += n
		if v.pad -= n; v.pad > 0 {
			return false
		}
		v.state = inData
	case inData:
		n := min(int(v.left), len(have))
		c.copyData(have[:n])
		v.r += n
		if v.left > 0 {
			return false
		}
		v.state = atDigest
	case atDigest:
		if v.hdr.Digest {
			if len(have) < pdu.DigestSize {
				return false
			}
			c.slots[v.cid].badDigest = c.slots[v.cid].badDigest || binary.LittleEndian.Uint32(have) != v.crc
			v.r += pdu.DigestSize
		}
		v.state = atHeader
		if v.hdr.Success() {
			c.completed(v.cid, nvme.StatusSuccess, 0, nil)
		}
	}
	return true
}

// copyData copies data from the buffer to the memory of its command.
func (c *conn) copyData(b []byte) {
	s := &c.slots[c.recv.cid]
	for len(b) > 0 {
		n := s.cur.rest(s.data, uint32(len(b)))
		copy(s.cur.bytes(s.data, n), b[:n])
		c.arrived(n)
		b = b[n:]
	}
}

// takeHeader checks a header and handles it. It returns false if the header is incomplete.
func (c *conn) takeHeader(have []byte) bool {
	if len(have) < pdu.CommonSize {
		return false
	}
	h, err := c.rx.Common(have)
	size := h.Size()
	if err == nil && (h.Type == pdu.TypeC2HTermReq) {
		size += int(h.Data)
	}
	if err == nil && len(have) < size {
		return false
	}
	if err == nil {
		err = c.rx.Header(h, have)
	}
	if err == nil && !c.ready && h.Type != pdu.TypeICResp && h.Type != pdu.TypeC2HTermReq {
		err = pdu.Violation(pdu.SequenceError, 0, "%s before ICResp", h.Type)
	}
	if err != nil {
		var e *pdu.Error
		if !errors.As(err, &e) {
			e = pdu.Violation(pdu.InvalidHeaderField, 0, "%v", err)
		}
		c.violated(e, have[:min(len(have), max(int(h.HLen), pdu.CommonSize))])
		return false
	}
	c.recv.r += size
	c.act(h, have[:h.HLen])
	return c.err == nil
}

// act handles a PDU whose header is complete.
func (c *conn) act(h pdu.Header, b []byte) {
	switch h.Type {
	case pdu.TypeCapsuleResp:
		cqe := pdu.CQEOf(b)
		c.completed(cqe.CID(), cqe.Status(), cqe.Result(), b)
	case pdu.TypeC2HData:
		c.beginData(h, b)
	case pdu.TypeR2T:
		c.asked(b)
	case pdu.TypeICResp:
		if c.ready {
			c.violated(pdu.Violation(pdu.SequenceError, 0, "a second ICResp"), b)
			return
		}
		c.ic, c.ready = pdu.ICOf(b), true
	case pdu.TypeC2HTermReq:
		t := pdu.TermReqOf(b)
		c.lose(fmt.Errorf("the target ended it: %s (information %#x)", t.FES, t.FEI))
	}
}

// beginData starts to receive the data of a C2HData.
func (c *conn) beginData(h pdu.Header, b []byte) {
	d := pdu.DataOf(b)
	s := c.slot(d.CID)
	switch {
	case s == nil || s.write:
		c.violated(pdu.Violation(pdu.InvalidHeaderField, 8, "C2HData for command %d, which is no read in flight", d.CID), b)
	case d.Offset != s.moved || d.Length > s.total-s.moved:
		c.violated(pdu.Violation(pdu.TransferOutOfRange, 12,
			"C2HData with %d bytes at %d of command %d, which has %d of %d", d.Length, d.Offset, d.CID, s.moved, s.total), b)
	default:
		s.moved += d.Length
		v := &c.recv
		v.state, v.hdr, v.cid, v.left, v.crc = inPadding, h, d.CID, d.Length, 0
		v.pad = int(h.Offset) - h.Size()
	}
}

// asked queues the data that an R2T asks for.
func (c *conn) asked(b []byte) {
	t := pdu.R2TOf(b)
	s := c.slot(t.CID)
	switch {
	case s == nil || !s.write || s.inCapsule:
		c.violated(pdu.Violation(pdu.InvalidHeaderField, 8, "R2T for command %d, which has no data to send", t.CID), b)
	case s.asked > 0:
		c.violated(pdu.Violation(pdu.LimitExceeded, 0, "a second R2T for command %d before the first was served", t.CID), b)
	case t.Offset > s.total || t.Length > s.total-t.Offset:
		c.violated(pdu.Violation(pdu.TransferOutOfRange, 12,
			"R2T for %d bytes at %d of command %d, which has %d", t.Length, t.Offset, t.CID, s.total), b)
	default:
		s.ttag, s.next, s.asked = t.TTag, t.Offset, t.Length
		s.moved = min(s.total, s.moved+t.Length) // the target may ask for a part again
		c.send.push(s, t.CID)
	}
}

// completed handles the answer to a command. offending is the PDU of the answer, nil
// for a C2HData with SUCCESS.
func (c *conn) completed(cid uint16, status nvme.Status, result uint64, offending []byte) {
	s := c.slot(cid)
	switch {
	case s == nil:
		c.violated(pdu.Violation(pdu.InvalidHeaderField, 20, "a response to command %d, which is not in flight", cid), offending)
	case status.Code() == nvme.StatusSuccess && s.asked > 0,
		status.Code() == nvme.StatusSuccess && s.moved < s.total && !s.inCapsule && !s.short:
		c.violated(pdu.Violation(pdu.SequenceError, 0,
			"command %d succeeded after %d of its %d bytes of data", cid, s.moved-s.asked, s.total), offending)
	default:
		c.answer(s, cid, status, result)
	}
}
