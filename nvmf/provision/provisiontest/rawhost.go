package provisiontest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// A rawHost is one connection of a host that sends arbitrary PDUs.
type rawHost struct {
	net.Conn
	send, recv pdu.Rules
	cid        uint16
}

// rawPatience is the time limit for an answer of the target.
const rawPatience = time.Minute

func dialRaw(id nvmf.TransportID) (*rawHost, error) {
	c, err := net.Dial("tcp", id.HostPort())
	if err != nil {
		return nil, err
	}
	h := &rawHost{Conn: c, send: pdu.Rules{FromHost: true}, recv: pdu.Rules{MaxData: 1 << 20}}
	b := make([]byte, pdu.ICSize)
	pdu.PutICReq(b, 0, 0, 1)
	if _, err = c.Write(b); err == nil {
		_, _, _, err = h.next()
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return h, nil
}

// next reads one PDU, and returns its header, its bytes and its data.
func (h *rawHost) next() (pdu.Header, []byte, []byte, error) {
	if err := h.SetDeadline(time.Now().Add(rawPatience)); err != nil {
		return pdu.Header{}, nil, nil, err
	}
	b := make([]byte, pdu.MaxHeaderSize)
	if _, err := io.ReadFull(h, b[:pdu.CommonSize]); err != nil {
		return pdu.Header{}, nil, nil, err
	}
	x, err := h.recv.Common(b)
	if err != nil {
		return x, nil, nil, err
	}
	head := make([]byte, x.Size())
	if x.Data > 0 && x.Type != pdu.TypeC2HTermReq {
		head = make([]byte, x.Offset)
	}
	copy(head, b[:pdu.CommonSize])
	data := make([]byte, x.Data)
	_, err1 := io.ReadFull(h, head[pdu.CommonSize:])
	_, err2 := io.ReadFull(h, data)
	return x, head, data, errors.Join(err1, err2)
}

// do sends a command, with in-capsule data if there is any, and returns the answer. It
// does not send data that the target asks for by R2T.
func (h *rawHost) do(sqe *nvme.SQE, data []byte) ([]byte, *nvme.CQE, error) {
	h.cid++
	sqe.SetCID(h.cid)
	if len(data) > 0 {
		sqe.SGL().Set(nvme.SGLInCapsule, 0, uint32(len(data)))
	}
	b := make([]byte, pdu.MaxHeaderSize)
	n := h.send.Put(b, pdu.TypeCapsuleCmd, 0, len(data))
	*pdu.SQEOf(b) = *sqe
	h.send.Seal(b)
	if _, err := h.Write(append(b[:n], data...)); err != nil {
		return nil, nil, err
	}
	var answer []byte
	for {
		x, head, d, err := h.next()
		switch {
		case err != nil:
			return answer, nil, err
		case x.Type == pdu.TypeCapsuleResp:
			return answer, pdu.CQEOf(head), nil
		case x.Type != pdu.TypeC2HData:
			return answer, nil, fmt.Errorf("PDU of type %v", x.Type)
		}
		if answer = append(answer, d...); x.Success() {
			return answer, new(nvme.CQE), nil
		}
	}
}

// status sends a command, and returns an error unless the command succeeds.
func (h *rawHost) status(sqe *nvme.SQE, data []byte) error {
	_, cqe, err := h.do(sqe, data)
	if err == nil && cqe.Status() != 0 {
		err = fmt.Errorf("status %#x", uint16(cqe.Status()))
	}
	return err
}

// identity has the fields of Connect that name the host, the subsystem and the queue.
type identity struct {
	sub, host string
	id        [16]byte
	qid       uint16
	cntlid    uint16
}

// connect executes Connect.
func (h *rawHost) connect(who identity) (result uint32, err error) {
	var sqe nvme.SQE
	var data nvme.ConnectData
	sqe.ResetFabrics(nvme.FabricsConnect, 0)
	sqe.SetConnect(nvme.Connect{QID: who.qid, SQSize: 31})
	data.Set(who.id, who.cntlid, who.sub, who.host)
	_, cqe, err := h.do(&sqe, data[:])
	if err == nil && cqe.Status() != 0 {
		err = fmt.Errorf("status %#x", uint16(cqe.Status()))
	}
	if err != nil {
		return 0, err
	}
	return uint32(cqe.Result()), nil
}

// prove authenticates the host.
func (h *rawHost) prove(who identity, keys dhchap.Keys) error {
	host := dhchap.NewHost(dhchap.Config{HostNQN: who.host, SubNQN: who.sub, Keys: keys})
	secure := func(kind uint8, length int) *nvme.SQE {
		s := new(nvme.SQE)
		s.ResetFabrics(kind, 0)
		s.SetSecurity(nvme.Security{Protocol: nvme.SecurityProtocolNVMe, Specific: nvme.SecuritySpecificAuth, Length: uint32(length)})
		s.SGL().Set(nvme.SGLTransport, 0, uint32(length))
		return s
	}
	for next := host.Start(); next != nil; {
		if err := h.status(secure(nvme.FabricsAuthSend, len(next)), next); err != nil || host.Done() {
			return err
		}
		answer, cqe, err := h.do(secure(nvme.FabricsAuthReceive, dhchap.MaxMessage), nil)
		switch {
		case err != nil:
			return err
		case cqe.Status() != 0:
			return fmt.Errorf("status %#x", uint16(cqe.Status()))
		}
		if next, err = host.Answer(answer); err != nil {
			return err
		}
	}
	return nil
}

// enable enables the controller.
func (h *rawHost) enable() error {
	var sqe nvme.SQE
	sqe.ResetFabrics(nvme.FabricsPropertySet, 0)
	sqe.SetProperty(nvme.PropertyCC, nvme.CCFabrics)
	return h.status(&sqe, nil)
}

// raw returns a command for a namespace, with length bytes of data in either direction.
func raw(opcode uint8, nsid uint32, length uint32) *nvme.SQE {
	s := new(nvme.SQE)
	s.Reset(opcode, 0, nsid)
	s.SGL().Set(nvme.SGLTransport, 0, length)
	return s
}
