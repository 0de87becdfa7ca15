package tcp

import (
	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

// Identify reads a page of Identify.
func (ctl *controller) Identify(what string, cns uint8, nsid uint32, page *[nvme.IdentifySize]byte) error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminIdentify, 0, nsid)
	sqe.SetIdentify(cns)
	_, err := ctl.exec("Identify "+what, &sqe, page[:])
	return err
}

// namespace identifies namespace id.NSID.
func (ctl *controller) namespace(o *Options, id nvmf.TransportID) (*nvmf.Identity, error) {
	return ctl.facts.Namespace(ctl, id, initiator.TransferSizes{MaxTransfer: o.MaxTransfer, OptimalTransfer: o.OptimalTransfer})
}
