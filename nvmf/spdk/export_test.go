//go:build spdk

package spdk

import (
	"context"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// Registrations is how many commands of a queue have registered their data with the device.
func Registrations(q nvmf.Queue) int { return q.(*Queue).registrations }

// Handle does with a command's data what is done where the command is, but does
// not send it.
func Handle(queue nvmf.Queue, cmd *nvmf.Command) {
	q := queue.(*Queue)
	i := q.free[0]
	q.inflight[i].cmd = cmd
	q.fill(i, cmd)
	q.deregister(i)
	q.unload(i)
	q.inflight[i].cmd = nil
}

// Socket is the one that a device's admin queue is reached by, or -1.
func Socket(d nvmf.Device) int { return d.(*Device).link.ctl.socket }

// Ask asks the controller of a device who it is.
func Ask(d nvmf.Device) error {
	var page [nvme.IdentifySize]byte
	return asking{d.(*Device).link.ctl, context.Background()}.Identify("Controller", nvme.CNSController, 0, &page)
}
