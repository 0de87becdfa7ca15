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
// queue. It has one owner at a time, which calls everything but kill.
type conn struct {
	fd int
	// mu guards closing fd against kill.
	mu     sync.Mutex
	closed bool

	// err is why the connection is lost, for good; it wraps
	// nvmf.ErrConnectionLost.
	err error
	// timeout is how long to go without a completion.
	timeout time.Duration

	rx, tx pdu.Rules // what the target sends, what we send
	ic     pdu.IC    // the target's ICResp
	ready  bool      // ICResp has come

	slots []slot
	free  []uint16 // slots without a command, a stack
	busy  int      // slots with one
	// resting are slots whose command is to be sent again later; see retry.go.
	// Only I/O queues repeat commands.
	resting []uint16
	retries bool
	answers uint64 // responses that came
	// Commands beyond the slots, linked by Command.Next.
	waiting, waitingEnd *nvmf.Command

	beside *conn // goes on while this one is waited for; nil: none

	send  sender
	recv  receiver
	pace  pace
	stats Stats
	// result is dwords 0 and 1 of the last completion.
	result uint64
}

// A slot is a command in flight; its index is the command id. Its owner:
// free -> start (queued to send) -> capsule sent -> answered -> free. The
// caller's memory is in use until finish, also for a command that is answered
// while a PDU of it is being sent.
type slot struct {
	cmd   *nvmf.Command // nil: the slot is free
	sqe   nvme.SQE
	write bool     // data goes to the target
	short bool     // fewer bytes than there is space for are no fault
	data  [][]byte // cmd.Data, or aux
	total uint32   // bytes of data
	// moved is how many bytes the target has sent, or asked for.
	moved uint32

	// cur walks data while it is sent or received.
	cur cursor

	// Sending. unsent: the capsule has not been put into a batch.
	unsent    bool
	inCapsule bool
	ttag      uint16
	asked     uint32 // bytes of the current R2T not yet in a batch
	next      uint32 // where they start
	queued    bool   // in sender.ring
	sending   int    // PDUs of it in the current batch

	// The answer, while PDUs of it have to be sent first.
	answered  bool
	status    nvme.Status
	result    uint64
	badDigest bool

	retry initiator.Retry

	// aux is the data of a Deallocate.
	aux     [maxDSMRanges * nvme.DSMRangeSize]byte
	auxData [1][]byte
}

// maxDSMRanges is enough ranges of 2^32-1 blocks for 16 TiB of 512-byte ones.
const maxDSMRanges = 8

// cursor is a place in a list of pieces.
type cursor struct {
	piece int
	off   int
	at    uint32 // bytes before it
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

// rest returns what is left of the current piece, at most n bytes, skipping
// empty pieces. It returns 0 at the end.
func (k *cursor) rest(data [][]byte, n uint32) int {
	for k.piece < len(data) {
		if l := len(data[k.piece]) - k.off; l > 0 {
			return min(l, int(n))
		}
		k.piece, k.off = k.piece+1, 0
	}
	return 0
}

// advance moves the cursor by n bytes within the current piece.
func (k *cursor) advance(data [][]byte, n int) {
	k.off += n
	k.at += uint32(n)
}

// bytes returns the next n bytes of the current piece.
func (k *cursor) bytes(data [][]byte, n int) []byte { return data[k.piece][k.off : k.off+n] }

// newConn takes over fd, a connected socket, for up to depth commands.
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

// start gives cmd a slot. There must be a free one. The caller fills in what
// the command's opcode needs of the SQE and then calls ship.
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

// ship queues the capsule of a slot with its data, which it decides the place
// of.
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

// slot returns the slot of a command id the target named, nil if there is no
// command that it can have seen.
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

// answer completes a slot, at once or when the PDUs of it that are being sent
// have left: until then its memory is in use.
func (c *conn) answer(s *slot, cid uint16, status nvme.Status, result uint64) {
	s.answered, s.status, s.result, s.asked = true, status, result, 0
	if s.sending == 0 && !s.queued {
		c.finish(s, cid)
	}
}

// finish hands an answered command back and its slot to the next, unless the
// command is worth another attempt.
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

// refusal is the status a command was answered with, as an error.
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

// lose ends the connection for good: every command completes with
// nvmf.ErrConnectionLost. The socket is reset rather than closed, so that
// nothing still buffered in it reaches the target later.
func (c *conn) lose(cause error) {
	if c.err != nil {
		return
	}
	c.err = fmt.Errorf("%w: %w", nvmf.ErrConnectionLost, cause)
	c.abort(true)
	c.failAll(c.err)
}

// violated ends the connection because of what the target sent, and tells it.
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

// abort closes the socket; hard drops what it has not sent.
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

// close ends a connection in order. Commands in flight complete with
// nvmf.ErrConnectionLost.
func (c *conn) close() {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %w", nvmf.ErrConnectionLost, nvmf.ErrClosed)
		c.abort(c.busy > 0)
		c.failAll(c.err)
	}
}

// kill wakes the owner with a connection that has ended. Anyone may call it
// at any time.
func (c *conn) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
}
