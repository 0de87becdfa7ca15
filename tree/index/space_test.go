package index

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"nvmecr/nvmf"
	"nvmecr/tree/wire"
)

// TestSpaceWhileTheStoreGrows checks that the total space is right while the index's partition gives space to ranks.
func TestSpaceWhileTheStoreGrows(t *testing.T) {
	r := newRig(t)
	r.stop()
	partitions, asked := uint32(1), 0
	var ranks, all nvmf.Bytes
	r.opts.Grow = func(n uint32) (uint32, error) {
		if n > partitions {
			partitions = n
			whole := r.fs.StatFS()
			_, err := r.fs.Shrink(nvmf.MiB, 0, nvmf.MiB, 32*nvmf.MiB)
			assert.NoError(t, err)
			ranks = nvmf.Bytes(whole.Blocks-r.fs.StatFS().Blocks) * whole.Hugeblock
		}
		return partitions, nil
	}
	var other *user
	r.opts.Space = func(context.Context) (nvmf.Bytes, nvmf.Bytes, error) {
		before := ranks
		if asked++; asked == 2 {
			other.ok(wire.OpGrow, &wire.Grow{Partitions: 4}, &wire.Grow{})
		}
		return before, before, nil
	}
	r.start()
	u := r.connect(wire.NoPartition)
	other = r.connect(wire.NoPartition)
	for range 3 {
		var s wire.StatFS
		u.ok(wire.OpStatFS, nil, &s)
		if all == 0 {
			all = nvmf.Bytes(s.Blocks) * s.Hugeblock
		}
		assert.Equal(t, all, nvmf.Bytes(s.Blocks)*s.Hugeblock)
	}
	assert.Equal(t, 4, asked, "once more when it has grown meanwhile")
}
