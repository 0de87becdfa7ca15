//go:build spdk

package spdk_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// BenchmarkDrivers compares the drivers on the target that NVMECR_TEST_SPDK names, with
// different sizes of commands and queue depths.
func BenchmarkDrivers(b *testing.B) {
	id := peer(b)
	for _, size := range []nvmf.Bytes{4 * nvmf.KiB, 32 * nvmf.KiB, nvmf.MiB} {
		for _, depth := range []int{1, 8, 32} {
			for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read} {
				for _, driver := range []dial.Driver{dial.SPDK, dial.Go} {
					name := fmt.Sprintf("%s/size=%d/depth=%d/driver=%s", op, size/nvmf.KiB, depth, driver)
					b.Run(name, func(b *testing.B) {
						d, err := dial.Open(b.Context(), id, dial.Options{Driver: driver})
						require.NoError(b, err)
						defer d.Close()
						benchmark(b, d, op, size, depth)
					})
				}
			}
		}
	}
}

// benchmark transfers blocks of the first half of the namespace, with depth commands in
// flight. It submits completed commands again at once, in one batch.
func benchmark(b *testing.B, d nvmf.Device, op nvmf.Opcode, size nvmf.Bytes, depth int) {
	q, err := d.OpenQueue(b.Context(), depth)
	require.NoError(b, err)
	defer q.Close()
	id := d.Identity()
	blocks, area := nvmf.LBA(size/id.LBASize), id.Blocks/2
	ring := make([]*nvmf.Command, depth)
	for i := range ring {
		ring[i] = &nvmf.Command{Opcode: op, Blocks: blocks, Data: [][]byte{make([]byte, size)}}
	}
	var at nvmf.LBA
	first, idle := 0, depth // the oldest in flight, and how many before it are idle
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; {
		batch := min(idle, left, depth-first)
		for _, c := range ring[first : first+batch] {
			c.LBA = at
			if at += blocks; at+blocks > area {
				at = 0
			}
		}
		q.Submit(ring[first : first+batch])
		left -= batch
		first = (first + batch) % depth
		// Other completed commands are submitted in the same batch.
		if err := q.Wait(ring[first : first+1]); err != nil {
			b.Fatal(err)
		}
		for idle = 0; idle < depth && ring[(first+idle)%depth].Done(); {
			idle++
		}
	}
	require.NoError(b, q.Wait(ring))
	b.StopTimer()
}
