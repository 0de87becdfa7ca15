package tcp

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// A conn is one connection with its queue pair: the admin queue, or an I/O
// queue. It has one owner at a time. Only kill may be called by others.
type conn struct {
	fd int
	// mu keeps kill from using fd after it was closed.
	mu     sync.Mutex
	closed bool

	// err is the reason why the connection is lost; it wraps
	// nvmf.ErrConnectionLost. It is never cleared.
	err error
	// timeout is the longest time without a completion; see expired.
	timeout time.Duration

	rx, tx pdu.Rules // for PDUs of the target, and of the host
	ic     pdu.IC    // the target's ICResp
	ready  bool      // ICResp has come

	slots []slot
	free  []uint16 // slots without a command, a stack
	busy  int      // number of slots with a command
	// resting are slots whose command waits for its retry; see retry.go. Only I/O
	// queues retry commands.
	resting []uint16
	retries bool
	answers uint64 // number of responses received
	// Commands that wait for a slot, linked by Command.Next.
	waiting, waitingEnd *nvmf.Command

	beside *conn // sends and receives, too, while the owner waits for this one; nil: none

	send  sender
	recv  receiver
	pace  pace
	stats Stats
	// result is dwords 0 and 1 of the last completion.
	result uint64
}

// A slot is a command in flight; its index is the command id. A slot goes through
// the states free, started (queued to send), capsule sent, answered, free. The
// caller's memory is in use until finish, also when the target answers a command
// while a PDU of it is being sent.
type slot struct {
	cmd   *nvmf.Command // nil: the slot is free
	sqe   nvme.SQE
	write bool     // data goes to the target
	short bool     // the target may send fewer bytes than total
	data  [][]byte // cmd.Data, or aux
	total uint32   // bytes of data
	// moved is the number of bytes that the target has sent, or asked for.
	moved uint32

	// cur is the position in data of the next byte to send or receive.
	cur cursor

	// State of sending. unsent means that the capsule is not in a batch yet.
	unsent    bool
	inCapsule bool
	ttag      uint16
	asked     uint32 // bytes of the current R2T not yet in a batch
	next      uint32 // offset of the first of these bytes
	queued    bool   // in sender.ring
	sending   int    // number of PDUs of the slot in the current batch

	// The answer, which is kept until the PDUs of the slot in the batch were sent.
	answered  bool
	status    nvme.Status
	result    uint64
	badDigest bool

	retry initiator.Retry

	// aux has the ranges of a Deallocate.
	aux     [maxDSMRanges * nvme.DSMRangeSize]byte
	auxData [1][]byte
}

// maxDSMRanges ranges of 2^32-1 blocks are enough for 16 TiB in blocks of 512 bytes.
const maxDSMRanges = 8

// cursor is a position in a list of buffers.
type cursor struct {
	piece int
	off   int
	at    uint32 // number of bytes before the position
}

// seek moves the cursor to byte n of data.
func (k *cursor) seek(data [][]byte, n uint32) {
	if n < k.at {
		*k = cursor{}
	}
	for n > k.at {
		k.advance(data, k.rest(data, n-k.at))
	}
}

// rest returns the number of bytes left in the current buffer, at most n. It skips
// empty buffers, and returns 0 at the end.
func (k *cursor) rest(data [][]byte, n uint32) int {
	for k.piece < len(data) {
		if l := len(data[k.piece]) - k.off; l > 0 {
			return min(l, int(n))
		}
		k.piece, k.off = k.piece+1, 0
	}
	return 0
}

// advance moves the cursor by n bytes within the current buffer.
func (k *cursor) advance(data [][]byte, n int) {
	k.off += n
	k.at += uint32(n)
}

// bytes returns the next n bytes of the current buffer.
func (k *cursor) bytes(data [][]byte, n int) []byte { return data[k.piece][k.off : k.off+n] }

// newConn returns a connection for up to depth commands on fd, a connected socket,
// which it takes over.
func newConn(fd, depth int, timeout time.Duration) (*conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = ownfd.Close(fd)
		return nil, fmt.Errorf("making the socket non-blocking: %w", err)
	}
	c := &conn{fd: fd, timeout: timeout, slots: make([]slot, depth), free: make([]uint16, 0, depth), resting: make([]uint16, 0, depth)}
	for i := depth - 1; i >= 0; i-- {
		c.free = append(c.free, uint16(i))
	}
	c.tx = pdu.Rules{FromHost: true, MaxCapsuleData: adminCapsuleData}
	c.rx = pdu.Rules{MaxData: 1<<32 - 1}
	c.send.init(depth)
	c.recv.init()
	c.pace.init()
	return c, nil
}

// start gives cmd a slot, of which one must be free. The caller sets the fields of
// the SQE for the command's opcode and then calls ship.
func (c *conn) start(cmd *nvmf.Command, opcode uint8, nsid uint32) (*slot, uint16) {
	cid := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.busy++
	s := &c.slots[cid]
	s.cmd, s.data, s.total, s.moved, s.cur = cmd, nil, 0, 0, cursor{}
	s.write, s.short, s.unsent, s.inCapsule, s.asked, s.next = false, false, true, false, 0, 0
	s.answered, s.badDigest, s.sending, s.retry = false, false, 0, initiator.Retry{}
	s.sqe.Reset(opcode, cid, nsid)
	return s, cid
}

// ship queues the capsule of a slot. It decides whether the data is sent in the
// capsule.
func (c *conn) ship(s *slot, cid uint16) {
	switch {
	case s.total == 0:
	case s.write && s.total <= c.tx.MaxCapsuleData:
		s.inCapsule = true
		s.sqe.SGL().Set(nvme.SGLInCapsule, 0, s.total)
	default:
		s.sqe.SGL().Set(nvme.SGLTransport, 0, s.total)
	}
	if !s.write && s.total > largeRead {
		if c.recv.large++; c.busy == 1 {
			c.recv.next, c.recv.guess = cid, true
		}
	}
	c.send.push(s, cid)
}

// slot returns the slot of a command id from the target. It returns nil if there is
// no such command that was sent and not answered.
func (c *conn) slot(cid uint16) *slot {
	if int(cid) >= len(c.slots) {
		return nil
	}
	s := &c.slots[cid]
	if s.cmd == nil || s.unsent || s.answered {
		return nil
	}
	return s
}

// answer completes a slot. If PDUs of the slot are being sent, answer leaves that to
// batchSent, since the memory of the command is in use until then.
func (c *conn) answer(s *slot, cid uint16, status nvme.Status, result uint64) {
	s.answered, s.status, s.result, s.asked = true, status, result, 0
	if s.sending == 0 && !s.queued {
		c.finish(s, cid)
	}
}

// finish completes an answered command, and gives its slot to a waiting command. If
// the status is transient, it schedules a retry instead.
func (c *conn) finish(s *slot, cid uint16) {
	c.answers++
	if s.badDigest && s.status.Code() == nvme.StatusSuccess {
		s.status = nvme.StatusTransientTransport
	}
	if s.status.Code() != nvme.StatusSuccess && c.again(s, cid) {
		return
	}
	cmd := s.cmd
	if !s.write && s.total > largeRead {
		c.recv.large--
	}
	c.stats.Commands++
	if s.write {
		c.stats.BytesWrite += uint64(s.total)
	} else {
		c.stats.BytesRead += uint64(s.total)
	}
	c.result = s.result
	var err error
	if s.status.Code() != nvme.StatusSuccess {
		err = s.refusal()
	}
	c.release(s, cid)
	cmd.Finish(err)
	c.startWaiting()
}

// refusal returns the status of an answered command as an error.
func (s *slot) refusal() *nvmf.StatusError {
	return &nvmf.StatusError{
		Opcode: s.cmd.Opcode, LBA: s.cmd.LBA, SCT: s.status.SCT(), SC: s.status.SC(), DNR: s.status.DNR(),
	}
}

func (c *conn) release(s *slot, cid uint16) {
	s.cmd, s.data, s.auxData[0] = nil, nil, nil
	c.free = append(c.free, cid)
	c.busy--
}

// lose ends the connection: every command completes with nvmf.ErrConnectionLost.
// The socket is reset, so that no data buffered in it reaches the target later.
func (c *conn) lose(cause error) {
	if c.err != nil {
		return
	}
	c.err = fmt.Errorf("%w: %w", nvmf.ErrConnectionLost, cause)
	c.abort(true)
	c.failAll(c.err)
}

// violated ends the connection after a protocol violation by the target, and sends
// a TermReq if possible.
func (c *conn) violated(e *pdu.Error, offending []byte) {
	if c.err != nil {
		return
	}
	if c.send.atBoundary() {
		var b [pdu.TermReqSize + pdu.MaxTermReqData]byte
		n := pdu.PutTermReq(b[:], true, e, offending)
		_, _ = unix.SendmsgN(c.fd, b[:n], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	c.err = fmt.Errorf("%w: the target broke the protocol: %w", nvmf.ErrConnectionLost, e)
	c.abort(false)
	c.failAll(c.err)
}

// failAll completes every command with err.
func (c *conn) failAll(err error) {
	c.send.drop()
	c.resting = c.resting[:0]
	for i := range c.slots {
		if s := &c.slots[i]; s.cmd != nil {
			cmd := s.cmd
			s.queued, s.sending = false, 0
			c.release(s, uint16(i))
			cmd.Finish(err)
		}
	}
	for c.waiting != nil {
		cmd := c.waiting
		c.waiting = cmd.Next
		cmd.Finish(err)
	}
	c.waitingEnd = nil
}

// abort closes the socket. With hard it resets the connection, and data not sent yet
// is dropped.
func (c *conn) abort(hard bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if hard {
		_ = unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	_ = ownfd.Close(c.fd)
}

// close ends a connection that the owner does not need any more. Commands in flight
// complete with nvmf.ErrConnectionLost.
func (c *conn) close() {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %w", nvmf.ErrConnectionLost, nvmf.ErrClosed)
		c.abort(c.busy > 0)
		c.failAll(c.err)
	}
}

// kill shuts the socket down, which wakes the owner. Any goroutine may call it at
// any time.
func (c *conn) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
}
