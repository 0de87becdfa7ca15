package tcp

import (
	"errors"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// routineKeepAlive tells the controller every interval that the host lives,
// until the association ends. A lost connection ends it, and wakes the queues.
func (ctl *controller) routineKeepAlive(interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctl.done:
			return
		case <-tick.C:
		}
		if errors.Is(ctl.ping(), nvmf.ErrConnectionLost) {
			return
		}
	}
}

// ping is one Keep Alive. Any answer, even a refusal, shows a living
// association; only exec's lost connection ends it.
func (ctl *controller) ping() error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminKeepAlive, 0, 0)
	_, err := ctl.exec("Keep Alive", &sqe, nil)
	return err
}
