package target

import (
	"testing"

	"nvmecr/nvmf/nvme"
)

// BenchmarkNoLimit measures the cost of the limit's code for each command of a
// namespace without a limit.
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
