// Package dial opens the namespace a TransportID names, with the
// implementation of nvmf.Device that reaches it:
//
//	TCP     nvmf/tcp      file:  nvmf/filedev
//	RDMA    none yet      mem:   nvmf/memdev
//	PCIe    none yet
//
// Open may be called concurrently.
package dial

import (
	"context"
	"fmt"

	"nvmecr/nvmf"
	"nvmecr/nvmf/filedev"
	"nvmecr/nvmf/memdev"
	"nvmecr/nvmf/tcp"
)

// Options are those of the implementations; each uses its own.
type Options struct {
	TCP  tcp.Options
	File filedev.Options
	Mem  memdev.Options
}

// memLBASize is the block size of mem: namespaces.
const memLBASize = 4 * nvmf.KiB

// Open opens the namespace id names. ctx bounds the opening only. Errors wrap
// those of opening a device in package nvmf: nvmf.ErrUnsupported for a
// transport this program was built without.
func Open(ctx context.Context, id nvmf.TransportID, o Options) (nvmf.Device, error) {
	switch id.Transport {
	case nvmf.TCP:
		return wrap(tcp.Open(ctx, id, o.TCP))
	case nvmf.File:
		return wrap(filedev.Open(id.Address, o.File))
	case nvmf.Mem:
		return wrap(memdev.New(id.Size, memLBASize, o.Mem))
	case nvmf.RDMA, nvmf.PCIe:
		return nil, fmt.Errorf("opening %s: %w: transport %s needs an SPDK driver, which this build does not have; use TCP",
			id, nvmf.ErrUnsupported, id.Transport)
	}
	return nil, fmt.Errorf("opening %s: %w: no such transport %q", id, nvmf.ErrUnsupported, id.Transport)
}

// wrap turns a nil pointer with an error into a nil interface.
func wrap[D nvmf.Device](d D, err error) (nvmf.Device, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}
