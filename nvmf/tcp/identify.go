package tcp

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// identify reads a page of Identify.
func (ctl *controller) identify(what string, cns uint8, nsid uint32, page *[nvme.IdentifySize]byte) error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminIdentify, 0, nsid)
	sqe.SetIdentify(cns)
	_, err := ctl.exec("Identify "+what, &sqe, page[:])
	return err
}

// identifyController learns the limits of the controller.
func (ctl *controller) identifyController(o *Options) error {
	var page nvme.IdentifyController
	if err := ctl.identify("Controller", nvme.CNSController, 0, (*[nvme.IdentifySize]byte)(&page)); err != nil {
		return err
	}
	if t := page.ControllerType(); t > nvme.ControllerIO {
		return fmt.Errorf("the controller is of type %d and does no I/O: %w", t, nvmf.ErrUnsupported)
	}
	if mdts := page.MDTS(); mdts > 0 && int(mdts)+int(ctl.cap.MPSMin())+12 < 32 {
		ctl.maxTransfer = 1 << (mdts + ctl.cap.MPSMin() + 12)
	}
	ctl.maxCommands = max(1, int(ctl.cap.MQES()))
	if m := int(page.MAXCMD()); m > 0 {
		ctl.maxCommands = min(ctl.maxCommands, m)
	}
	// The capsule holds the SQE and then the data, at ICDOFF, which is 0 on
	// TCP. Where it is not, no data goes into capsules.
	if n := page.IOCCSZ(); n > nvme.SQESize/16 && page.ICDOFF() == 0 {
		ctl.capsuleData = 16*min(n, maxTransferCap/16) - nvme.SQESize
	}
	ctl.flushable = page.VWC()&nvme.VWCPresent != 0
	ctl.oncs = page.ONCS()
	ctl.keepAlive = page.KAS() > 0
	return nil
}

// namespace identifies namespace id.NSID.
func (ctl *controller) namespace(o *Options, id nvmf.TransportID) (*nvmf.Identity, error) {
	var page nvme.IdentifyNamespace
	err := ctl.identify("Namespace", nvme.CNSNamespace, id.NSID, (*[nvme.IdentifySize]byte)(&page))
	var se *nvmf.StatusError
	if errors.As(err, &se) && nvme.Status(se.SCT)<<8|nvme.Status(se.SC) == nvme.StatusInvalidNamespace {
		return nil, fmt.Errorf("namespace %d: %w: %w", id.NSID, nvmf.ErrNoNamespace, err)
	}
	if err != nil {
		return nil, err
	}
	if page.NSZE() == 0 {
		return nil, fmt.Errorf("namespace %d: %w (or not for this host)", id.NSID, nvmf.ErrNoNamespace)
	}
	identity, err := ctl.geometry(o, &page)
	if err != nil {
		return nil, fmt.Errorf("namespace %d: %w", id.NSID, err)
	}
	identity.UUID, err = ctl.uuid(id, &page)
	if err != nil {
		return nil, err
	}
	return identity, nil
}

// geometry derives sizes and limits of a namespace.
func (ctl *controller) geometry(o *Options, page *nvme.IdentifyNamespace) (*nvmf.Identity, error) {
	ms, lbads, _ := page.LBAFormat(page.Format())
	switch {
	case ms != 0 || page.DPS()&7 != 0:
		return nil, fmt.Errorf("it has %d bytes of metadata a block; format it without: %w", ms, nvmf.ErrUnsupported)
	case lbads < 9 || lbads > 12:
		return nil, fmt.Errorf("its blocks are of 2^%d bytes; 512 to 4096 bytes can be used: %w", lbads, nvmf.ErrUnsupported)
	case page.NSZE() > 1<<(63-lbads):
		return nil, fmt.Errorf("it has an impossible %d blocks: %w", page.NSZE(), nvmf.ErrUnsupported)
	}
	id := &nvmf.Identity{
		LBASize:            1 << lbads,
		Blocks:             nvmf.LBA(page.NSZE()),
		VolatileWriteCache: ctl.flushable,
		CanDeallocate:      ctl.oncs&nvme.ONCSDSM != 0,
		Reservations:       ctl.oncs&nvme.ONCSReservation != 0 && page.RESCAP()&nvme.RESCAPWriteExclusive != 0,
	}
	id.MaxTransfer = min(o.MaxTransfer, 65536*id.LBASize)
	if ctl.maxTransfer != 0 {
		id.MaxTransfer = min(id.MaxTransfer, nvmf.Bytes(ctl.maxTransfer))
	}
	id.MaxTransfer = max(id.LBASize, id.MaxTransfer.AlignDown(id.LBASize))
	id.OptimalTransfer = max(id.LBASize, min(ctl.optimal(o), id.MaxTransfer).AlignDown(id.LBASize))
	return id, nil
}

// optimal is the size of command that gives the best bandwidth. Each that has to
// be asked for its data takes a round trip: beside SPDK's target commands of
// 512 KiB write 13% more than of 128 KiB; where the data is in the capsule 128 KiB
// is best.
func (ctl *controller) optimal(o *Options) nvmf.Bytes {
	const small, large = 128 * nvmf.KiB, 512 * nvmf.KiB
	switch {
	case o.OptimalTransfer != 0:
		return o.OptimalTransfer
	case nvmf.Bytes(ctl.capsuleData) >= small:
		return small
	}
	return large
}

// derived is the space of UUIDs made of other identifiers.
var derived = uuid.MustParse("2c1b33ab-0f29-4d0c-9c8e-6d0d7f0a4b51")

// uuid returns the UUID of a namespace: its own, else one derived from NGUID,
// from EUI-64, or from subsystem NQN and namespace id.
func (ctl *controller) uuid(id nvmf.TransportID, page *nvme.IdentifyNamespace) (uuid.UUID, error) {
	nguid, eui := page.NGUID(), page.EUI64()
	var list [nvme.IdentifySize]byte
	err := ctl.identify("Namespace Identification Descriptors", nvme.CNSDescriptors, id.NSID, &list)
	var se *nvmf.StatusError
	if err != nil && !errors.As(err, &se) { // controllers before 1.3 do not know the list
		return uuid.Nil, err
	}
	for _, d := range nvme.Descriptors(&list) {
		switch {
		case d.Type == nvme.NIDUUID && len(d.ID) == 16 && uuid.UUID(d.ID) != uuid.Nil:
			return uuid.UUID(d.ID), nil
		case d.Type == nvme.NIDNGUID && len(d.ID) == 16:
			nguid = [16]byte(d.ID)
		case d.Type == nvme.NIDEUI64 && len(d.ID) == 8:
			eui = [8]byte(d.ID)
		case d.Type == nvme.NIDCSI && len(d.ID) == 1 && d.ID[0] != 0:
			return uuid.Nil, fmt.Errorf("namespace %d has command set %d, not NVM: %w", id.NSID, d.ID[0], nvmf.ErrUnsupported)
		}
	}
	switch {
	case nguid != [16]byte{}:
		return uuid.NewSHA1(derived, append([]byte("nguid:"), nguid[:]...)), nil
	case eui != [8]byte{}:
		return uuid.NewSHA1(derived, append([]byte("eui:"), eui[:]...)), nil
	}
	return uuid.NewSHA1(derived, fmt.Appendf(nil, "nqn:%s:%d", id.SubNQN, id.NSID)), nil
}
