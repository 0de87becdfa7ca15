package target

import (
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// sender encodes and sends the answers and R2Ts of commands.
//
// Commands wait in a ring. A batch of them is composed at a time: headers into a buffer, data as
// pieces of the namespace's memory, all sent by one sendmsg if the socket takes it. A slot is free
// when the batch of its command has been sent.
type sender struct {
	rules pdu.Rules

	ring  []outgoing // of a power of two, with space for every command
	first uint32
	count uint32

	batch   []outgoing
	headers []byte // of the batch
	iov     []unix.Iovec
	// answers has for each piece the place in headers of the CapsuleResp
	// that can still report that the piece could not be read, or -1.
	answers []int32
	next    int // next piece to send
	bounce  []byte
	bounced int // bytes of bounce that the batch uses

	msg unix.Msghdr
}

// outgoing is a command that has something to send: its R2T, or its answer.
type outgoing struct {
	slot uint16
	r2t  bool
}

const (
	maxBatch = 64
	// maxHeaders is the most header and digest bytes of one command: C2HData
	// with padding, data digest, CapsuleResp with digest.
	maxHeaders = pdu.MaxAlignment + pdu.DigestSize + pdu.CapsuleRespSize + pdu.DigestSize
)

// size makes space for n commands. Waiting commands stay.
func (s *sender) size(n int) {
	length := 2
	for length < n {
		length *= 2
	}
	ring := make([]outgoing, length)
	for i := range s.count {
		ring[i] = s.ring[(s.first+i)&uint32(len(s.ring)-1)]
	}
	s.ring, s.first = ring, 0
	if s.headers == nil {
		s.headers = make([]byte, 0, (maxBatch+2)*maxHeaders)
		s.batch = make([]outgoing, 0, maxBatch)
		s.iov = make([]unix.Iovec, 0, 4*maxBatch)
		s.answers = make([]int32, 0, 4*maxBatch)
	}
}

// push queues a command. There is always space, because a command waits at most once.
func (s *sender) push(slot uint16, r2t bool) {
	s.ring[(s.first+s.count)&uint32(len(s.ring)-1)] = outgoing{slot, r2t}
	s.count++
}

// sent reports whether no batch is in the middle of being sent.
func (s *sender) sent() bool { return s.next == len(s.iov) }

func (s *sender) pending() bool { return s.count > 0 || !s.sent() }

// transmit sends as much as the socket takes; moved says whether it took any.
func (c *conn) transmit() (moved bool, err error) {
	s := &c.out
	for s.pending() {
		if s.sent() {
			c.compose()
		}
		s.msg.Iov = &s.iov[s.next]
		s.msg.Iovlen = uint64(len(s.iov) - s.next)
		n, errno := sendmsg(c.fd, &s.msg, c.brief())
		if errno == unix.EFAULT {
			s.msg.Iovlen = 1 // to learn which piece is missing
			n, errno = sendmsg(c.fd, &s.msg, c.brief())
		}
		switch {
		case again(errno):
			return moved, nil
		case errno == unix.EFAULT:
			if err := c.substitute(); err != nil {
				return moved, err
			}
			continue
		case errno != 0:
			return moved, fmt.Errorf("send: %w", errno)
		}
		moved = true
		s.advance(n)
		if s.sent() {
			c.settle()
		}
	}
	return moved, nil
}

// advance moves past n bytes that were sent.
func (s *sender) advance(n int) {
	for n > 0 {
		p := &s.iov[s.next]
		if uint64(n) < p.Len {
			b := unsafeSlice(p)
			p.Base, p.Len = &b[n], p.Len-uint64(n)
			return
		}
		n -= int(p.Len)
		s.next++
	}
}

// settle frees the slots of a batch that was sent.
func (c *conn) settle() {
	s := &c.out
	for _, o := range s.batch {
		if !o.r2t {
			c.releaseCommand(o.slot)
		}
	}
	clear(s.iov)
	s.batch, s.headers, s.iov, s.answers = s.batch[:0], s.headers[:0], s.iov[:0], s.answers[:0]
	s.next, s.bounced = 0, 0
}

// compose makes a batch of waiting commands.
func (c *conn) compose() {
	s := &c.out
	for s.count > 0 && len(s.batch) < maxBatch {
		o := s.ring[s.first&uint32(len(s.ring)-1)]
		m := &c.commands[o.slot]
		if !o.r2t && m.read > 0 && c.copies(m) && s.bounced > 0 && s.bounced+int(m.read) > len(s.bounce) {
			return // no space for its data until this batch is sent
		}
		s.first++
		s.count--
		s.batch = append(s.batch, o)
		switch {
		case o.r2t:
			s.putR2T(o.slot, m)
		case m.status == 0 && m.read > 0:
			c.putRead(m)
		case m.status == 0 && len(m.answer) > 0:
			s.putData(m, m.answer, false)
			c.putResponse(m)
		default:
			c.putResponse(m)
		}
	}
}

// copies reports whether a read goes through the buffer: a digest must be that
// of the bytes sent, whatever is written to the namespace meanwhile.
func (c *conn) copies(m *command) bool { return m.at.memory == nil || c.out.rules.DataDigest }

// putRead adds the data of a read and its completion.
func (c *conn) putRead(m *command) {
	s := &c.out
	end := m.offset + int64(m.read)
	if !c.copies(m) {
		if m.at.faulty != nil {
			// The completion is sent apart from the data: it may still have to report that the data
			// could not be read.
			s.putData(m, m.at.memory[m.offset:end], false)
			s.answers[len(s.answers)-1] = int32(len(s.headers))
			c.putResponse(m)
			return
		}
		c.ahead.read(m.at.memory, m.offset, end)
		s.putData(m, m.at.memory[m.offset:end], c.noSQFlow)
	} else {
		if s.bounce == nil {
			s.bounce = make([]byte, maxTransfer)
		}
		b := s.bounce[s.bounced : s.bounced+int(m.read)]
		if m.status = c.statusOf(m, m.at.backing.ReadAt(b, m.offset)); m.status != 0 {
			c.putResponse(m)
			return
		}
		s.bounced += len(b)
		s.putData(m, b, c.noSQFlow)
	}
	if !c.noSQFlow {
		c.putResponse(m)
	}
}

// putData adds one C2HData with all of a command's data.
func (s *sender) putData(m *command, data []byte, success bool) {
	flags := uint8(pdu.FlagLast)
	if success {
		flags |= pdu.FlagSuccess
	}
	at := len(s.headers)
	b := s.headers[at : at+maxHeaders]
	n := s.rules.Put(b, pdu.TypeC2HData, flags, len(data))
	pdu.PutData(b, pdu.Data{CID: m.sqe.CID(), Length: uint32(len(data))})
	s.rules.Seal(b)
	s.piece(n)
	s.iov = append(s.iov, unix.Iovec{Base: &data[0], Len: uint64(len(data))})
	s.answers = append(s.answers, -1)
	if s.rules.DataDigest {
		crc := pdu.Digest(0, data)
		t := s.headers[len(s.headers) : len(s.headers)+pdu.DigestSize]
		t[0], t[1], t[2], t[3] = uint8(crc), uint8(crc>>8), uint8(crc>>16), uint8(crc>>24)
		s.piece(pdu.DigestSize)
	}
}

// putR2T asks for all the data of a write.
func (s *sender) putR2T(slot uint16, m *command) {
	at := len(s.headers)
	b := s.headers[at : at+maxHeaders]
	n := s.rules.Put(b, pdu.TypeR2T, 0, 0)
	pdu.PutR2T(b, pdu.R2T{CID: m.sqe.CID(), TTag: slot, Length: m.want})
	s.rules.Seal(b)
	s.piece(n)
}

// putResponse adds a CapsuleResp.
func (c *conn) putResponse(m *command) {
	s := &c.out
	at := len(s.headers)
	b := s.headers[at : at+maxHeaders]
	n := s.rules.Put(b, pdu.TypeCapsuleResp, 0, 0)
	head := c.sqHead
	if c.noSQFlow {
		head = 0xffff
	}
	pdu.CQEOf(b).Set(m.sqe.CID(), head, m.status, m.result)
	s.rules.Seal(b)
	s.piece(n)
}

// piece makes the n bytes behind the headers part of what is sent.
func (s *sender) piece(n int) {
	at := len(s.headers)
	s.headers = s.headers[:at+n]
	if last := len(s.iov) - 1; last >= 0 && s.follows(last, at) {
		s.iov[last].Len += uint64(n)
		return
	}
	s.iov = append(s.iov, unix.Iovec{Base: &s.headers[at], Len: uint64(n)})
	s.answers = append(s.answers, -1)
}

// follows reports whether headers[at] is right behind piece i.
func (s *sender) follows(i, at int) bool {
	if at == 0 {
		return false
	}
	b := unsafeSlice(&s.iov[i])
	return &b[len(b)-1] == &s.headers[at-1]
}

// zeros stand in for data that could not be read.
var zeros [64 << 10]byte

// substitute handles the next piece to be sent if it is a part of a file's mapping that is missing.
// The header that announces the data may have been sent. So zeros take the place of the data, and
// the completion behind them reports that the read failed.
func (c *conn) substitute() error {
	s := &c.out
	if s.answers[s.next] < 0 {
		return fmt.Errorf("send: %w", syscall.EFAULT)
	}
	b := s.headers[s.answers[s.next]:]
	cqe := pdu.CQEOf(b)
	cqe.Set(cqe.CID(), cqe.SQHD(), nvme.StatusReadError, 0)
	s.rules.Seal(b)
	c.target.log.Error("target: page fault in a namespace's file, was it truncated?", "nqn", c.ctrl.sub.nqn)
	var pieces []unix.Iovec
	for n := s.iov[s.next].Len; n > 0; {
		k := min(n, uint64(len(zeros)))
		pieces = append(pieces, unix.Iovec{Base: &zeros[0], Len: k})
		n -= k
	}
	s.answers = slices.Replace(s.answers, s.next, s.next+1, slices.Repeat([]int32{-1}, len(pieces))...)
	s.iov = slices.Replace(s.iov, s.next, s.next+1, pieces...)
	return nil
}
