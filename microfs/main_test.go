package microfs

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain lets the heap grow to eleven times its live size before garbage is collected. The tests mount
// thousands of small file systems a second, each with a tiny heap, and would collect all the time. The
// memory limit keeps the heap small enough that page faults cost little.
func TestMain(m *testing.M) {
	debug.SetGCPercent(1000)
	debug.SetMemoryLimit(512 << 20)
	os.Exit(m.Run())
}
