package hostile

import (
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestApply(t *testing.T) {
	edit := func(place, what byte, at, arg uint16) []byte {
		return []byte{place, what, 0, 0, byte(at), byte(at >> 8), byte(arg), byte(arg >> 8)}
	}
	for _, c := range []struct {
		name   string
		script []byte
		want   []byte
	}{
		{"a byte", edit(0, 0, 3, 7), []byte{1, 2, 3, 7, 5, 6, 7, 8}},
		{"aligned", edit(0, 1, 1, 0x0b0a), []byte{0x0a, 0x0b, 3, 4, 5, 6, 7, 8}},
		{"the end of a range", edit(0, 4|3, 0, uint16(len(values)-1)), []byte{255, 255, 255, 255, 255, 255, 255, 255}},
		{"less", edit(0, 8, 0, 0xffff), []byte{0, 2, 3, 4, 5, 6, 7, 8}},
		{"a bit", edit(0, 12|2, 0, 8), []byte{1, 3, 3, 4, 5, 6, 7, 8}},
		{"half an edit", edit(0, 0, 0, 9)[:7], []byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{"the other place", edit(1, 0, 0, 9), []byte{1, 2, 3, 4, 5, 6, 7, 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			// at is taken modulo the places that eight bytes leave.
			got := append([]byte{1, 2, 3, 4, 5, 6, 7, 8}, make([]byte, 8)...)
			Apply(c.script, 9, [][]byte{got, make([]byte, 8)})
			assert.Equal(t, c.want, got[:8])
		})
	}
}

var (
	sink  []byte
	spins atomic.Int64
)

func TestAllocated(t *testing.T) {
	before := allocated()
	sink = make([]byte, 1<<20)
	assert.GreaterOrEqual(t, allocated()-before, uint64(1<<20))
	assert.Less(t, allocated()-before, uint64(1<<21))
}

// TestHang runs itself with an endless function, which Bounded has to end.
func TestHang(t *testing.T) {
	const limit = 50 * time.Millisecond
	switch os.Getenv("HOSTILE_HANG") {
	case "runs":
		Bounded(t, 1<<20, limit, func() {
			for i := 0; ; i++ {
				spins.Store(int64(i))
			}
		})
	case "sleeps":
		Bounded(t, 1<<20, limit, func() { select {} })
	}
	for how, least := range map[string]time.Duration{"runs": limit, "sleeps": idle * limit} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestHang$")
		cmd.Env = append(os.Environ(), "HOSTILE_HANG="+how)
		begin := time.Now()
		out, err := cmd.CombinedOutput()
		assert.Error(t, err)
		assert.Contains(t, string(out), "TestHang hangs: not done after")
		assert.GreaterOrEqual(t, time.Since(begin), least, how)
	}
}

// TestSlow checks that waiting for longer than the limit, as on a busy machine, is not a hang.
func TestSlow(t *testing.T) {
	const limit = 20 * time.Millisecond
	Bounded(t, 1<<20, limit, func() { time.Sleep(3 * limit) })
}
