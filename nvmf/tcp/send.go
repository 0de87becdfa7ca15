package tcp

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf/pdu"
)

// PDUs are sent in batches. The ring has the slots that have something to send. fill
// turns them into PDUs. It lists the headers, which are in a fixed set of blocks, and
// the data, which stays in the caller's memory, as I/O vectors. flush sends the
// vectors, in one system call if the socket takes them. The next batch is made when
// the whole batch was sent, so the blocks need no reference counts. A PDU whose data
// has too many pieces continues in the next batch.

const (
	maxIOV  = 1024 // UIO_MAXIOV
	maxPDUs = 96   // per batch
)

// block is the memory of one PDU's header with padding, and its data digest.
// The target chooses the alignment: a capsule's header of 76 bytes may be padded
// to twice 72, which is more than the largest alignment.
type block struct {
	head [pdu.MaxHeaderSize]byte
	tail [pdu.DigestSize]byte
}

type sender struct {
	// ring holds the ids of slots with something to send, oldest first.
	ring []uint16
	head int
	n    int

	// The batch. The vectors iov[next:] are still to be sent. batch[i] is the slot that
	// block i belongs to.
	msg    unix.Msghdr
	iov    []unix.Iovec
	next   int
	blocks []block
	batch  []uint16

	// The PDU that is being composed: the number of bytes of data that are not in a
	// batch yet, and the digest so far.
	open bool
	cid  uint16
	left uint32
	crc  uint32
}

func (t *sender) init(depth int) {
	t.ring = make([]uint16, depth)
	t.iov = make([]unix.Iovec, 0, maxIOV)
	t.blocks = make([]block, maxPDUs)
	t.batch = make([]uint16, 0, maxPDUs)
}

// push queues a slot. A slot is in the ring at most once.
func (t *sender) push(s *slot, cid uint16) {
	if s.queued {
		return
	}
	s.queued = true
	t.ring[(t.head+t.n)%len(t.ring)] = cid
	t.n++
}

func (t *sender) pop(s *slot) {
	s.queued = false
	t.head = (t.head + 1) % len(t.ring)
	t.n--
}

// pending reports whether there is something to send.
func (t *sender) pending() bool { return t.next < len(t.iov) || t.n > 0 || t.open }

// atBoundary reports whether the next byte on the wire would start a PDU.
func (t *sender) atBoundary() bool { return t.next == len(t.iov) && !t.open }

// drop discards everything that is queued.
func (t *sender) drop() {
	clear(t.iov)
	t.iov, t.batch, t.next, t.n, t.open = t.iov[:0], t.batch[:0], 0, 0, false
}

func (t *sender) add(b []byte) {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	t.iov = append(t.iov, v)
}

// flush sends as much as the socket takes.
func (c *conn) flush() {
	t := &c.send
	for c.err == nil {
		if t.next == len(t.iov) {
			c.batchSent()
			if !c.fill() {
				return
			}
		}
		t.msg.Iov = &t.iov[t.next]
		t.msg.SetIovlen(len(t.iov) - t.next)
		n, errno := sendmsg(c.fd, &t.msg)
		switch errno {
		case 0:
			t.skip(n)
			if t.next < len(t.iov) {
				return // the socket is full
			}
		case unix.EINTR:
		case unix.EAGAIN:
			return
		default:
			c.lose(fmt.Errorf("sending: %w", errno))
		}
	}
}

// skip removes n sent bytes from the batch.
func (t *sender) skip(n int) {
	for n > 0 {
		v := &t.iov[t.next]
		if n < int(v.Len) {
			v.Base = advance(v.Base, n)
			v.SetLen(int(v.Len) - n)
			return
		}
		n -= int(v.Len)
		t.next++
	}
}

// batchSent completes the slots that were answered while their PDUs were being sent.
func (c *conn) batchSent() {
	t := &c.send
	clear(t.iov) // keeps no references to the callers' memory
	for _, cid := range t.batch {
		s := &c.slots[cid]
		s.sending--
		if s.answered && s.sending == 0 && !s.queued && !(t.open && t.cid == cid) {
			c.finish(s, cid)
		}
	}
	t.iov, t.batch, t.next = t.iov[:0], t.batch[:0], 0
}

// fill makes the next batch and reports whether there is one.
func (c *conn) fill() bool {
	t := &c.send
	if t.open { // continues the PDU of the last batch
		t.batch = append(t.batch, t.cid)
		c.slots[t.cid].sending++
	}
	for len(t.iov) < maxIOV-2 {
		if !t.open && (len(t.batch) == maxPDUs || !c.nextPDU()) {
			break
		}
		if !c.addData() {
			break
		}
	}
	return len(t.iov) > 0
}

// nextPDU adds the header of the next PDU of the ring, if there is one.
func (c *conn) nextPDU() bool {
	t := &c.send
	for t.n > 0 {
		cid := t.ring[t.head]
		s := &c.slots[cid]
		if s.answered { // the target has completed the command early
			t.pop(s)
			if s.sending == 0 {
				c.finish(s, cid)
			}
			continue
		}
		b := &t.blocks[len(t.batch)]
		t.batch = append(t.batch, cid)
		s.sending++
		t.open, t.cid, t.crc = true, cid, 0
		if s.unsent {
			t.left = 0
			if s.inCapsule {
				t.left = s.total
			}
			n := c.tx.Put(b.head[:], pdu.TypeCapsuleCmd, 0, int(t.left))
			*pdu.SQEOf(b.head[:]) = s.sqe
			c.tx.Seal(b.head[:])
			t.add(b.head[:n])
			s.unsent = false
			t.pop(s)
			return true
		}
		c.putH2CData(s, cid, b)
		return true
	}
	return false
}

// putH2CData adds the header of the next H2CData of the slot's R2T.
func (c *conn) putH2CData(s *slot, cid uint16, b *block) {
	t := &c.send
	t.left = min(s.asked, c.tx.MaxData)
	flags := uint8(0)
	if t.left == s.asked {
		flags = pdu.FlagLast
	}
	n := c.tx.Put(b.head[:], pdu.TypeH2CData, flags, int(t.left))
	pdu.PutData(b.head[:], pdu.Data{CID: cid, TTag: s.ttag, Offset: s.next, Length: t.left})
	c.tx.Seal(b.head[:])
	t.add(b.head[:n])
	s.cur.seek(s.data, s.next)
	s.next += t.left
	s.asked -= t.left
	if s.asked == 0 {
		t.pop(s)
	}
}

// addData adds the data of the open PDU and its digest; it returns false if
// they do not fit the batch.
func (c *conn) addData() bool {
	t := &c.send
	s := &c.slots[t.cid]
	digest := c.tx.DataDigest && t.left > 0
	for t.left > 0 {
		if len(t.iov) >= maxIOV-1 {
			return false
		}
		n := s.cur.rest(s.data, t.left)
		b := s.cur.bytes(s.data, n)
		if digest {
			t.crc = pdu.Digest(t.crc, b)
		}
		t.add(b)
		s.cur.advance(s.data, n)
		t.left -= uint32(n)
	}
	if digest {
		b := &t.blocks[len(t.batch)-1]
		binary.LittleEndian.PutUint32(b.tail[:], t.crc)
		t.add(b.tail[:])
	}
	t.open = false
	return true
}
