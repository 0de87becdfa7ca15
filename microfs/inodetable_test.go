package microfs

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestInodeTable makes the same random changes to an inodeTable and to a map, and compares them.
func TestInodeTable(t *testing.T) {
	seed := newSeed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	var table inodeTable
	want := map[Ino]*inode{}
	number := func() Ino { // numbers close together, at multiples of eight pages, and anywhere
		return Ino([]uint64{r.Uint64N(100), r.Uint64N(20) * 8 * tablePage, r.Uint64()}[r.IntN(3)])
	}
	for range 20000 {
		ino := number()
		if r.IntN(3) == 0 && len(want) > 0 {
			ino = slices.Collect(maps.Keys(want))[r.IntN(len(want))]
		}
		switch r.IntN(3) {
		case 0:
			in := &inode{ino: ino}
			table.put(in)
			want[ino] = in
		case 1:
			table.drop(ino)
			delete(want, ino)
		}
		require.Same(t, want[ino], table.get(ino))
		require.Equal(t, len(want), table.count)
	}
	var got []Ino
	for in := range table.all() {
		require.Same(t, want[in.ino], in)
		got = append(got, in.ino)
		table.drop(in.ino)
	}
	require.Equal(t, slices.Sorted(maps.Keys(want)), got)
	require.Zero(t, table.count)
	require.Empty(t, table.pages)
}

func TestInodeIsSmall(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(inode{}), uintptr(112), "what an index takes for a name, in a size that Go allocates")
}
