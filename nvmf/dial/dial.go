// Package dial opens the namespace a TransportID names, with the
// implementation of nvmf.Device that reaches it:
//
//	TCP     nvmf/tcp or nvmf/spdk      file:  nvmf/filedev
//	RDMA    nvmf/spdk                  mem:   nvmf/memdev
//	PCIe    nvmf/spdk
//
// nvmf/spdk is there in programs built with the tag spdk. Open may be called
// concurrently.
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

// Retire is called when the process ends: namespaces are opened with driver Go
// from then on, if they can be.
func Retire() { spdk.Retire() }

// A Driver is an implementation that talks to controllers.
type Driver string

// Drivers. Go is the default, and there for TCP only.
const (
	Go   Driver = "go"
	SPDK Driver = "spdk"
)

// Drivers names the drivers that this program has, with their versions.
func Drivers() []string {
	if v := spdk.Version(); v != "" {
		return []string{string(Go), string(SPDK) + " " + v}
	}
	return []string{string(Go)}
}

// Options are those of the implementations; each uses its own.
type Options struct {
	// Driver is for namespaces that are reached over TCP.
	Driver Driver
	// TCP is for all namespaces that have a controller, as far as the driver
	// and the transport have such an option.
	TCP  tcp.Options
	File filedev.Options
	Mem  memdev.Options
}

// memLBASize is the block size of mem: namespaces.
const memLBASize = 4 * nvmf.KiB

// Open opens the namespace id names. ctx bounds the opening only. Errors wrap
// those of opening a device in package nvmf: nvmf.ErrUnsupported for a
// transport or driver this program was built without.
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

// overSPDK are the same options for the other driver.
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

// wrap turns a nil pointer with an error into a nil interface.
func wrap[D nvmf.Device](d D, err error) (nvmf.Device, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}
