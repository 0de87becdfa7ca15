package target

import "testing"

// BenchmarkNoLimit is what a namespace without a limit pays for each command.
func BenchmarkNoLimit(b *testing.B) {
	c, m := &conn{}, &command{at: &attachment{namespace: &namespace{}}}
	for b.Loop() {
		if c.paused() {
			b.Fatal("paused")
		}
		c.charge(m, 4096)
	}
}
