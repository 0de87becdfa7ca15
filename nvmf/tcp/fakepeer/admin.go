package fakepeer

import (
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// dispatch executes a command of the admin queue, or calls the script for one of an
// I/O queue.
func (c *Conn) dispatch(sqe *nvme.SQE, data []byte) error {
	cid := sqe.CID()
	connect := sqe.Opcode() == nvme.AdminFabrics && sqe.FabricsType() == nvme.FabricsConnect
	if connect {
		c.QID = sqe.Connect().QID
	}
	if c.QID == 0 && c.peer.Admin != nil {
		if handled, err := c.peer.Admin(c, sqe, data); handled || err != nil {
			return err
		}
	}
	switch {
	case connect:
		var status nvme.Status
		if c.peer.Connect != nil {
			status = c.peer.Connect(c.QID)
		}
		result := nvme.ConnectResult(1, 0)
		if status.Code() == nvme.StatusConnectInvalidParameters {
			result = nvme.ConnectInvalid(nvme.ConnectOffsetCNTLID, true)
		}
		return c.Respond(cid, status, result)
	case c.QID != 0:
		return c.peer.IO(c, sqe, data)
	case sqe.Opcode() == nvme.AdminFabrics:
		return c.property(sqe)
	case sqe.Opcode() == nvme.AdminIdentify:
		return c.identify(sqe)
	case sqe.Opcode() == nvme.AdminSetFeatures:
		return c.Respond(cid, 0, uint64(nvme.NumberOfQueues(8, 8)))
	case sqe.Opcode() == nvme.AdminKeepAlive:
		return c.Respond(cid, 0, 0)
	}
	return c.Respond(cid, nvme.StatusInvalidOpcode|nvme.DNR, 0)
}

func (c *Conn) property(sqe *nvme.SQE) error {
	var value uint64
	offset, _, _ := sqe.Property()
	if sqe.FabricsType() == nvme.FabricsPropertyGet {
		switch offset {
		case nvme.PropertyCAP:
			value = uint64(c.peer.CAP)
		case nvme.PropertyCSTS:
			value = c.peer.CSTS()
		}
	}
	return c.Respond(sqe.CID(), 0, value)
}

func (c *Conn) identify(sqe *nvme.SQE) error {
	var page [nvme.IdentifySize]byte
	switch sqe.CNS() {
	case nvme.CNSController:
		p := (*nvme.IdentifyController)(&page)
		p.SetControllerType(nvme.ControllerIO)
		p.SetIOCCSZ((4096 + nvme.SQESize) / 16)
		p.SetONCS(nvme.ONCSDSM)
		p.SetVWC(nvme.VWCPresent)
		p.SetKAS(1)
		if c.peer.Controller != nil {
			c.peer.Controller(p)
		}
	case nvme.CNSNamespace:
		p := (*nvme.IdentifyNamespace)(&page)
		p.SetSize(Blocks)
		p.SetLBAFormat(9)
		if c.peer.Namespace != nil {
			c.peer.Namespace(p)
		}
	case nvme.CNSDescriptors:
		if c.peer.Descriptors == nil {
			return c.Respond(sqe.CID(), nvme.StatusInvalidField|nvme.DNR, 0)
		}
		nvme.PutDescriptors(&page, c.peer.Descriptors)
	}
	if err := c.Data(sqe.CID(), 0, page[:], pdu.FlagLast); err != nil {
		return err
	}
	return c.Respond(sqe.CID(), 0, 0)
}
