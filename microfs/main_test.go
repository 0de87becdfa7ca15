package microfs

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain has garbage collected when memory is taken, not in proportion to the heap: the
// tests mount thousands of small file systems a second, and the heap of one is tiny.
func TestMain(m *testing.M) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(512 << 20)
	os.Exit(m.Run())
}
