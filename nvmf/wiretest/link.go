package wiretest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// maxPDU is the greatest length of a PDU. A greater length means that the bytes are not NVMe/TCP.
const maxPDU = 64 << 20

// quiet is the time without data from a host after which the proxy assumes that it has
// received everything that the host has sent.
const quiet = 2 * time.Millisecond

// link is one connection through the proxy, with a socket to the host and one to the
// target.
type link struct {
	proxy *Proxy
	n     int
	ends  [2]*net.TCPConn // the destination of each direction
	lanes [2]lane

	mu   sync.Mutex // guards the following fields
	qid  int
	hdgs bool // the connection uses header digests
	kept []byte
	late bool // the host is disconnected, and kept waits for Release
	// delivered says that kept was delivered. answers counts the CapsuleResp and C2HData since then.
	delivered bool
	answers   int
	pumps     int // number of pumps that have not ended

	over chan struct{} // closed when all pumps have ended
}

// lane is the sending side of one direction.
type lane struct {
	mu   sync.Mutex
	to   *net.TCPConn
	held []byte // sent after the next PDU
}

func newLink(p *Proxy, n int, host, target *net.TCPConn) *link {
	l := &link{proxy: p, n: n, qid: -1, pumps: 2, over: make(chan struct{}),
		ends: [2]*net.TCPConn{ToTarget: target, ToHost: host}}
	for d, c := range l.ends {
		_ = c.SetNoDelay(true) // an optimisation
		l.lanes[d].to = c
	}
	return l
}

// pump forwards one direction until its source ends.
func (l *link) pump(to Direction) {
	from := l.ends[1-to]
	r := bufio.NewReaderSize(from, 64<<10)
	for {
		b, err := readPDU(r)
		if err == nil {
			err = l.forward(to, b)
		} else if errors.Is(err, errNoPDU) {
			b, err = nil, l.forwardRest(to, b, r)
		}
		if err != nil {
			l.ended(to, b, err)
			return
		}
	}
}

var errNoPDU = errors.New("not a PDU")

// readPDU reads one PDU. With an error it returns the bytes that it has read.
func readPDU(r *bufio.Reader) ([]byte, error) {
	head := make([]byte, pdu.CommonSize)
	if n, err := io.ReadFull(r, head); err != nil {
		return head[:n], err
	}
	length := binary.LittleEndian.Uint32(head[4:])
	if length < pdu.CommonSize || length > maxPDU {
		return head, errNoPDU
	}
	b := make([]byte, length)
	copy(b, head)
	n, err := io.ReadFull(r, b[pdu.CommonSize:])
	return b[:pdu.CommonSize+n], err
}

// errEnded ends a pump whose connection the script has ended.
var errEnded = errors.New("ended by the script")

// forward executes the script's action for a PDU.
func (l *link) forward(to Direction, b []byte) error {
	u := &PDU{To: to, Conn: l.n, Type: pdu.Type(b[0]), Bytes: b}
	if l.observe(u) {
		return nil
	}
	a := l.proxy.decide(u)
	switch a.verb {
	case drop:
		return nil
	case cutAll:
		l.proxy.Cut()
		return errEnded
	case delay:
		select {
		case <-time.After(a.wait):
		case <-l.proxy.done:
		}
	case corrupt:
		b[max(0, place(a.at, len(b)))%len(b)] ^= a.mask
	case swap:
		return l.lanes[to].hold(b, a.wait)
	case cut:
		_ = l.lanes[to].write(b[:place(a.at, len(b))]) // the connection ends in any case
		l.reset()
		return errEnded
	case finish:
		_ = l.lanes[to].write(b[:place(a.at, len(b))])
		l.finish()
		return errEnded
	case keep:
		return l.keep(b)
	case keepAll:
		err := l.keep(b)
		l.proxy.keepAll()
		return err
	case answer:
		return l.answer(u.SQE().CID(), a.status)
	case rewrite:
		cqe := pdu.CQEOf(b)
		cqe.Set(cqe.CID(), cqe.SQHD(), a.status, cqe.Result())
		(&pdu.Rules{}).Seal(b)
	}
	return l.lanes[to].write(b)
}

// observe records the properties of the connection that a PDU shows. It returns true if
// the PDU must not be forwarded: it is kept, or is for a host that is disconnected.
func (l *link) observe(u *PDU) (taken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := u.SQE(); s != nil && l.qid < 0 && s.Opcode() == nvme.AdminFabrics && s.FabricsType() == nvme.FabricsConnect {
		l.qid = int(s.Connect().QID)
	}
	if u.Type == pdu.TypeICResp && len(u.Bytes) >= pdu.ICSize {
		l.hdgs = pdu.ICOf(u.Bytes).Digest&pdu.EnableHeaderDigest != 0
	}
	u.QID = l.qid
	switch {
	case l.late && u.To == ToTarget:
		l.kept = append(l.kept, u.Bytes...)
	case l.delivered && (u.Type == pdu.TypeCapsuleResp || u.Type == pdu.TypeC2HData):
		l.answers++
	}
	return l.late
}

// keep stores b and everything that the host sends from now on. It disconnects the host
// when the host has sent nothing for the time quiet.
func (l *link) keep(b []byte) error {
	l.mu.Lock()
	l.late, l.kept = true, append(l.kept, b...)
	l.mu.Unlock()
	return l.ends[ToHost].SetReadDeadline(time.Now().Add(quiet))
}

// answer sends a response instead of the target.
func (l *link) answer(cid uint16, s nvme.Status) error {
	l.mu.Lock()
	rules := pdu.Rules{HeaderDigest: l.hdgs}
	l.mu.Unlock()
	var b [pdu.CapsuleRespSize + pdu.DigestSize]byte
	n := rules.Put(b[:], pdu.TypeCapsuleResp, 0, 0)
	pdu.CQEOf(b[:]).Set(cid, 0, s, 0)
	rules.Seal(b[:])
	return l.lanes[ToHost].write(b[:n])
}

// forwardRest forwards bytes without parsing them.
func (l *link) forwardRest(to Direction, head []byte, r io.Reader) error {
	if err := l.lanes[to].write(head); err != nil {
		return err
	}
	_, err := io.Copy(l.ends[to], r)
	return errors.Join(io.EOF, err)
}

// ended forwards the end of a source, which is a close or a reset. rest is the
// beginning of a PDU that the end cut off.
func (l *link) ended(to Direction, rest []byte, err error) {
	l.mu.Lock()
	late := l.late
	if late && to == ToTarget {
		l.kept = append(l.kept, rest...)
	}
	l.pumps--
	last := l.pumps == 0
	l.mu.Unlock()
	switch {
	case late && to == ToTarget:
		l.proxy.strand(l) // Release uses the connection to the target
		abort(l.ends[ToHost])
	case late || err == errEnded:
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		_ = l.lanes[to].write(rest) // the other side may be gone
		l.lanes[to].finish()
	default:
		l.reset()
	}
	if last {
		for _, c := range l.ends {
			_ = c.Close() // both directions have ended
		}
		l.proxy.forget(l)
		close(l.over)
	}
}

// deliver sends the kept bytes and then the end of the stream. It waits until the
// target closes the connection, at most one second, and returns how many commands were
// answered.
func (l *link) deliver() int {
	l.mu.Lock()
	kept := l.kept
	l.kept, l.delivered = nil, true
	l.mu.Unlock()
	c := l.ends[ToTarget]
	_, err := c.Write(kept)
	if err == nil {
		err = c.CloseWrite()
	}
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(time.Second))
	}
	if err != nil {
		abort(c)
	}
	<-l.over
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answers
}

// reset resets both sockets.
func (l *link) reset() {
	for _, c := range l.ends {
		abort(c)
	}
}

// finish closes both sockets without a reset.
func (l *link) finish() {
	for d := range l.lanes {
		l.lanes[d].finish()
	}
}

func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// write sends b, and then the held bytes.
func (l *lane) write(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(b) > 0 {
		if _, err := l.to.Write(b); err != nil {
			return err
		}
	}
	return l.flush()
}

// flush sends the held bytes. l.mu is held.
func (l *lane) flush() error {
	b := l.held
	l.held = nil
	if b == nil {
		return nil
	}
	_, err := l.to.Write(b)
	return err
}

// hold keeps b back until the next write, or for d.
func (l *lane) hold(b []byte, d time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.flush(); err != nil {
		return err
	}
	l.held = b
	time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.held) > 0 && len(b) > 0 && &l.held[0] == &b[0] {
			_ = l.flush() // readers and later writes notice a lost connection
		}
	})
	return nil
}

// finish closes the sending side without a reset.
func (l *lane) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.flush() // the socket may be gone
	_ = l.to.CloseWrite()
}
