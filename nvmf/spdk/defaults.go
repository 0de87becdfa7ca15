//go:build spdk

package spdk

import (
	"cmp"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
)

// complete returns o with its defaults filled in.
func (o Options) complete(transport nvmf.Transport) Options {
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, initiator.ConnectTimeout)
	o.CommandTimeout = cmp.Or(o.CommandTimeout, initiator.CommandTimeout)
	o.KeepAlive = cmp.Or(o.KeepAlive, initiator.KeepAlive)
	o.HostID, o.HostNQN = initiator.Host(o.HostID, o.HostNQN)
	o.QueueDepth = initiator.QueueDepth(o.QueueDepth)
	transfer, memory := 4*nvmf.MiB, 64*nvmf.MiB
	if transport != nvmf.TCP {
		transfer, memory = nvmf.MiB, 256*nvmf.MiB
	}
	o.MaxTransfer = min(cmp.Or(o.MaxTransfer, transfer), initiator.MaxTransfer)
	o.RegisterFrom = cmp.Or(o.RegisterFrom, 512*nvmf.KiB)
	o.Memory = cmp.Or(o.Memory, memory)
	return o
}
