// Package fakepeer is a scripted NVMe/TCP target for tests of the initiator. Its admin queue
// conforms to the specification; a script answers the I/O commands, and may violate the
// specification in any way. The target is slow and simple, keeps no data, and shares only
// package pdu with the real target.
//
// Each connection is served by a goroutine of its own; scripts run there, one command at a
// time for each connection.
package fakepeer

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// NQN is the subsystem every Peer has, with namespace 1.
const NQN = "nqn.2014-08.org.example:fake"

// A Script handles one command; c answers it. An error ends the connection.
type Script func(c *Conn, sqe *nvme.SQE, data []byte) error

// Peer is a target. The exported fields are set before Start.
type Peer struct {
	// IC changes the ICResp; nil for 4-byte alignment, the digests asked for,
	// MAXH2CDATA 131072.
	IC func(req pdu.IC) pdu.IC
	// Align is the alignment of the data in C2HData, where the target aligns it more
	// than the host asks for; 0 is 4.
	Align uint32
	// IO handles the commands of I/O queues.
	IO Script
	// Admin handles a command of the admin queue and returns true, or returns false
	// for the default.
	Admin func(c *Conn, sqe *nvme.SQE, data []byte) (handled bool, err error)
	// Connect returns the status of the Connect to a queue; nil for success. Connect
	// Invalid Parameters names the field CNTLID.
	Connect func(qid uint16) nvme.Status
	// Controller and Namespace change the Identify pages.
	Controller func(*nvme.IdentifyController)
	Namespace  func(*nvme.IdentifyNamespace)
	// Descriptors is the Namespace Identification Descriptor list.
	Descriptors []nvme.Descriptor
	// CAP and CSTS are the values of these properties. CSTS is called for each
	// Property Get.
	CAP  nvme.CAP
	CSTS func() uint64

	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	count int
}

// Blocks is the size of the namespace, in blocks of 512 bytes.
const Blocks = 1 << 20

// New returns a peer with a namespace of Blocks blocks of 512 bytes, in-capsule
// data of 4 KiB and the given script.
func New(io Script) *Peer {
	return &Peer{
		IO: io, CAP: nvme.MakeCAP(127, 1), conns: map[net.Conn]struct{}{},
		CSTS:        func() uint64 { return nvme.CSTSReady },
		Descriptors: []nvme.Descriptor{{Type: nvme.NIDUUID, ID: []byte("0123456789abcdef")}},
	}
}

// Start listens on a free port and returns the id of namespace 1. The peer
// ends with the test.
func (p *Peer) Start(tb testing.TB) nvmf.TransportID {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p.listener = l
	p.wg.Go(p.accept)
	tb.Cleanup(p.Stop)
	host, port, _ := net.SplitHostPort(l.Addr().String())
	return nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port, SubNQN: NQN, NSID: 1}
}

// Dial connects to the peer without a network, for tcp.Options: thousands of
// connections would use up the ports. The peer need not have been started; Stop
// ends it.
func (p *Peer) Dial(context.Context, nvmf.TransportID) (fd int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	f := os.NewFile(uintptr(fds[1]), "peer")
	nc, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return -1, errors.Join(err, unix.Close(fds[0]))
	}
	p.begin(nc)
	return fds[0], nil
}

// Stop ends listener and connections and waits for the scripts.
func (p *Peer) Stop() {
	if p.listener != nil {
		p.listener.Close()
	}
	p.Cut()
	p.wg.Wait()
}

// Cut closes every connection.
func (p *Peer) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// Connections returns how many connections were ever accepted.
func (p *Peer) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

func (p *Peer) accept() {
	for {
		nc, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.begin(nc)
	}
}

// begin serves a connection.
func (p *Peer) begin(nc net.Conn) {
	p.mu.Lock()
	p.conns[nc] = struct{}{}
	p.count++
	p.mu.Unlock()
	p.wg.Go(func() {
		p.serve(nc)
		nc.Close()
		p.mu.Lock()
		delete(p.conns, nc)
		p.mu.Unlock()
	})
}

func (p *Peer) serve(nc net.Conn) {
	c := &Conn{peer: p, Conn: nc}
	if c.initialize() != nil {
		return
	}
	for {
		sqe, data, err := c.ReadCommand()
		if err != nil || c.dispatch(sqe, data) != nil {
			return
		}
	}
}

// Conn is one connection of the host.
type Conn struct {
	net.Conn
	// RX are the rules of PDUs from the host, TX those of PDUs to the host.
	RX, TX pdu.Rules
	// QID is the id of the queue, from its Connect on.
	QID  uint16
	peer *Peer
}

// ErrHangUp makes the peer close the connection without a TermReq.
var ErrHangUp = errors.New("the script hangs up")

func (c *Conn) initialize() error {
	c.RX = pdu.Rules{FromHost: true, MaxData: 1 << 20, MaxCapsuleData: 1 << 20}
	_, head, _, err := c.ReadPDU()
	if err != nil {
		return err
	}
	req := pdu.ICOf(head)
	ic := pdu.IC{Digest: req.Digest, Max: 128 << 10}
	if c.peer.IC != nil {
		ic = c.peer.IC(req)
	}
	resp := make([]byte, pdu.ICSize)
	pdu.PutICResp(resp, ic.PDA, ic.Digest, ic.Max)
	hd, dd := ic.Digest&pdu.EnableHeaderDigest != 0, ic.Digest&pdu.EnableDataDigest != 0
	c.RX = pdu.Rules{FromHost: true, HeaderDigest: hd, DataDigest: dd, Align: pdu.Alignment(ic.PDA), MaxData: ic.Max, MaxCapsuleData: 1 << 20}
	c.TX = pdu.Rules{HeaderDigest: hd, DataDigest: dd, Align: max(c.peer.Align, pdu.Alignment(req.PDA))}
	_, err = c.Write(resp)
	return err
}

// ReadPDU reads one PDU with its data, digests verified.
func (c *Conn) ReadPDU() (h pdu.Header, head, data []byte, err error) {
	head = make([]byte, pdu.MaxHeaderSize)
	if _, err = io.ReadFull(c, head[:pdu.CommonSize]); err != nil {
		return
	}
	if h, err = c.RX.Common(head); err != nil {
		return
	}
	if _, err = io.ReadFull(c, head[pdu.CommonSize:h.Offset]); err != nil {
		return
	}
	if err = c.RX.Header(h, head); err != nil {
		return
	}
	data = make([]byte, int(h.Data)+c.RX.TrailerSize(int(h.Data)))
	if _, err = io.ReadFull(c, data); err != nil {
		return
	}
	data, trailer := data[:h.Data], data[h.Data:]
	if d := pdu.Digest(0, data); h.Digest && string(trailer) != string([]byte{byte(d), byte(d >> 8), byte(d >> 16), byte(d >> 24)}) {
		err = errors.New("wrong data digest")
	}
	return
}

// ReadCommand reads a CapsuleCmd.
func (c *Conn) ReadCommand() (*nvme.SQE, []byte, error) {
	h, head, data, err := c.ReadPDU()
	if err == nil && h.Type != pdu.TypeCapsuleCmd {
		err = errors.New("not a command: " + h.Type.String())
	}
	return pdu.SQEOf(head), data, err
}

// Send writes a PDU: a header filled in by rest, then data and its digest.
func (c *Conn) Send(t pdu.Type, flags uint8, data []byte, rest func(b []byte)) error {
	_, err := c.Write(c.Encode(t, flags, data, rest))
	return err
}

// Encode returns what Send writes.
func (c *Conn) Encode(t pdu.Type, flags uint8, data []byte, rest func(b []byte)) []byte {
	b := make([]byte, pdu.MaxHeaderSize)
	n := c.TX.Put(b, t, flags, len(data))
	rest(b)
	c.TX.Seal(b)
	b = append(b[:n], data...)
	if c.TX.TrailerSize(len(data)) > 0 {
		d := pdu.Digest(0, data)
		b = append(b, byte(d), byte(d>>8), byte(d>>16), byte(d>>24))
	}
	return b
}

// Respond completes a command.
func (c *Conn) Respond(cid uint16, status nvme.Status, result uint64) error {
	return c.Send(pdu.TypeCapsuleResp, 0, nil, func(b []byte) { pdu.CQEOf(b).Set(cid, 0, status, result) })
}

// Data sends a C2HData.
func (c *Conn) Data(cid uint16, offset int, data []byte, flags uint8) error {
	return c.Send(pdu.TypeC2HData, flags, data, func(b []byte) {
		pdu.PutData(b, pdu.Data{CID: cid, Offset: uint32(offset), Length: uint32(len(data))})
	})
}

// R2T sends an R2T.
func (c *Conn) R2T(cid, ttag uint16, offset, length uint32) error {
	return c.Send(pdu.TypeR2T, 0, nil, func(b []byte) {
		pdu.PutR2T(b, pdu.R2T{CID: cid, TTag: ttag, Offset: offset, Length: length})
	})
}

// ReadData reads H2CData until it has length bytes, and checks their headers.
func (c *Conn) ReadData(cid, ttag uint16, offset, length uint32) ([]byte, error) {
	var all []byte
	for uint32(len(all)) < length {
		h, head, data, err := c.ReadPDU()
		if err != nil {
			return nil, err
		}
		want := pdu.Data{CID: cid, TTag: ttag, Offset: offset + uint32(len(all)), Length: h.Data}
		all = append(all, data...)
		if h.Type != pdu.TypeH2CData || pdu.DataOf(head) != want || h.Last() != (uint32(len(all)) == length) {
			return nil, errors.New("H2CData that was not asked for")
		}
	}
	return all, nil
}
