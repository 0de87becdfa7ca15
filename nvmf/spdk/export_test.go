//go:build spdk

package spdk

import (
	"context"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// Registrations returns the number of commands of a queue that have registered their data with the device.
func Registrations(q nvmf.Queue) int { return q.(*Queue).registrations }

// Handle registers or copies the data of a command as Submit does, and releases the
// data again, without sending the command.
func Handle(queue nvmf.Queue, cmd *nvmf.Command) {
	q := queue.(*Queue)
	i := q.free[0]
	q.inflight[i].cmd = cmd
	q.fill(i, cmd)
	q.deregister(i)
	q.unload(i)
	q.inflight[i].cmd = nil
}

// Socket returns the socket of a device's admin queue, or -1.
func Socket(d nvmf.Device) int { return d.(*Device).link.ctl.socket }

// Ask sends an Identify Controller command to the controller of a device.
func Ask(d nvmf.Device) error {
	var page [nvme.IdentifySize]byte
	return asking{d.(*Device).link.ctl, context.Background()}.Identify("Controller", nvme.CNSController, 0, &page)
}
