package microfs

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain has garbage collected at ten times the heap in use, not at twice: the
// tests mount thousands of small file systems a second, and the heap of one is tiny. More would cost page faults.
func TestMain(m *testing.M) {
	debug.SetGCPercent(1000)
	debug.SetMemoryLimit(512 << 20)
	os.Exit(m.Run())
}
