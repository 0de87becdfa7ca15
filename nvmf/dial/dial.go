// Package dial opens the namespace of a TransportID with the implementation of
// nvmf.Device for its transport:
//
//	TCP     nvmf/tcp or nvmf/spdk      file:  nvmf/filedev
//	RDMA    nvmf/spdk                  mem:   nvmf/memdev
//	PCIe    nvmf/spdk
//
// Programs built with the tag spdk include nvmf/spdk. Open is safe for concurrent use.
package dial

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/nvmf"
	"nvmecr/nvmf/filedev"
	"nvmecr/nvmf/memdev"
	"nvmecr/nvmf/spdk"
	"nvmecr/nvmf/tcp"
)

// Retire must be called when the process ends. From then on, namespaces are opened
// without SPDK if the Go driver supports their transport.
func Retire() { spdk.Retire() }

// A Driver is an implementation of an NVMe host.
type Driver string

// Drivers. Go is the default, and supports TCP only.
const (
	Go   Driver = "go"
	SPDK Driver = "spdk"
)

// Drivers returns the names of the drivers that this program includes, with their
// versions.
func Drivers() []string {
	if v := spdk.Version(); v != "" {
		return []string{string(Go), string(SPDK) + " " + v}
	}
	return []string{string(Go)}
}

// Options are the options of all implementations. Each implementation uses its own.
type Options struct {
	// Driver selects the driver for TCP.
	Driver Driver
	// TCP applies to all namespaces with a controller, as far as driver and transport
	// have the option.
	TCP  tcp.Options
	File filedev.Options
	Mem  memdev.Options
}

// memLBASize is the logical block size of mem: namespaces.
const memLBASize = 4 * nvmf.KiB

// Open opens the namespace id. ctx bounds only the opening. Errors wrap those of
// package nvmf. A transport or driver that this program does not include is
// nvmf.ErrUnsupported.
func Open(ctx context.Context, id nvmf.TransportID, o Options) (nvmf.Device, error) {
	switch id.Transport {
	case nvmf.TCP:
		if o.Driver == SPDK {
			d, err := wrap(spdk.Open(ctx, id, overSPDK(&o)))
			if !errors.Is(err, spdk.ErrUnusable) {
				return d, err
			}
		}
		return wrap(tcp.Open(ctx, id, o.TCP))
	case nvmf.RDMA, nvmf.PCIe:
		if !o.TCP.PSK.IsZero() {
			return nil, fmt.Errorf("opening %s: %w: there is a key for TLS (--tls-psk), which is for TCP and not for %s; "+
				"reach the target over TCP, or leave the key out", id, nvmf.ErrUnsupported, id.Transport)
		}
		return wrap(spdk.Open(ctx, id, overSPDK(&o)))
	case nvmf.File:
		return wrap(filedev.Open(id.Address, o.File))
	case nvmf.Mem:
		return wrap(memdev.New(id.Size, memLBASize, o.Mem))
	}
	return nil, fmt.Errorf("opening %s: %w: no such transport %q", id, nvmf.ErrUnsupported, id.Transport)
}

// overSPDK converts the options to those of the SPDK driver.
func overSPDK(all *Options) spdk.Options {
	o := all.TCP
	return spdk.Options{
		PSK:               o.PSK,
		HostNQN:           o.HostNQN,
		HostID:            o.HostID,
		Keys:              o.Keys,
		AuthOffer:         o.AuthOffer,
		HeaderDigest:      o.HeaderDigest,
		DataDigest:        o.DataDigest,
		ConnectTimeout:    o.ConnectTimeout,
		CommandTimeout:    o.CommandTimeout,
		KeepAlive:         o.KeepAlive,
		QueueDepth:        o.QueueDepth,
		MaxTransfer:       o.MaxTransfer,
		OptimalTransfer:   o.OptimalTransfer,
		CongestionControl: o.CongestionControl,
	}
}

// wrap returns a nil interface instead of a nil pointer if err is not nil.
func wrap[D nvmf.Device](d D, err error) (nvmf.Device, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}
