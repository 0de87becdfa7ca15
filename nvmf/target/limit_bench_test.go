package target

import (
	"testing"

	"nvmecr/nvmf/nvme"
)

// BenchmarkNoLimit is what a namespace without a limit pays for each command.
func BenchmarkNoLimit(b *testing.B) {
	a := &attachment{namespace: &namespace{id: 1}}
	c, m := &conn{qid: 1, attached: map[uint32]*attachment{1: a}}, &command{at: a}
	m.sqe.Reset(nvme.IORead, 1, 1)
	for b.Loop() {
		if c.paused() || c.queued(&m.sqe) {
			b.Fatal("paused")
		}
		c.charge(m, 4096)
	}
}
