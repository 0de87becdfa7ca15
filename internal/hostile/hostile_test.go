package hostile

import (
	"testing"

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

var sink []byte

func TestAllocated(t *testing.T) {
	before := allocated()
	sink = make([]byte, 1<<20)
	assert.GreaterOrEqual(t, allocated()-before, uint64(1<<20))
	assert.Less(t, allocated()-before, uint64(1<<21))
}
