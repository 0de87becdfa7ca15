package microfs

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// TestEverySizeMounts checks that the layout that Format chooses passes the checks of Mount, for
// partitions of very different sizes: the state area grows with the partition.
func TestEverySizeMounts(t *testing.T) {
	for _, hugeblock := range []nvmf.Bytes{4 * nvmf.KiB, 32 * nvmf.KiB, 1 * nvmf.MiB, 4 * nvmf.MiB} {
		for size := 2 * nvmf.MiB; size <= 512*nvmf.TiB; size = size * 3 / 2 / blockSize * blockSize {
			for _, sums := range []bool{true, false} {
				id := &nvmf.Identity{LBASize: 4096, Blocks: nvmf.LBA(size / 4096)}
				g, err := newGeometry(id, Segment{Length: size}, &FormatOptions{Hugeblock: hugeblock, NoDataCRC: !sums})
				if errors.Is(err, ErrTooSmall) || errors.Is(err, ErrBadFormat) { // Format fails before it writes
					continue
				}
				require.NoError(t, err)
				require.NoError(t, g.check(), "%v with hugeblocks of %v", size, hugeblock)
			}
		}
	}
}
