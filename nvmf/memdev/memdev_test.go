package memdev_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
)

func TestConformance(t *testing.T) {
	for _, lba := range []nvmf.Bytes{512, 4096} {
		t.Run(lba.String(), func(t *testing.T) {
			blocktest.Run(t, func(t *testing.T) nvmf.Device {
				d, err := memdev.New(nvmf.Bytes(blocktest.MinimumBlocks)*lba, lba, memdev.Options{})
				require.NoError(t, err)
				return d
			})
		})
	}
}

// TestLargeDeviceIsSparse checks that a device can be larger than the memory of the machine, and that its memory is
// released with its last queue.
func TestLargeDeviceIsSparse(t *testing.T) {
	d, err := memdev.New(nvmf.TiB, 4096, memdev.Options{})
	require.NoError(t, err)
	q, err := d.OpenQueue(context.Background(), 1)
	require.NoError(t, err)
	id := d.Identity()
	assert.Equal(t, nvmf.TiB, id.Capacity())
	b := make([]byte, 4096)
	b[0] = 1
	c := &nvmf.Command{Opcode: nvmf.Write, LBA: id.Blocks - 1, Blocks: 1, Data: [][]byte{b}}
	q.Submit([]*nvmf.Command{c})
	require.NoError(t, q.Wait([]*nvmf.Command{c}))
	assert.Equal(t, byte(1), d.Bytes()[id.Capacity()-4096])
	require.NoError(t, d.Close())
	assert.NotNil(t, d.Bytes(), "memory stays while a queue is open")
	require.NoError(t, q.Close())
	assert.Nil(t, d.Bytes())
}

func TestBadSizes(t *testing.T) {
	for _, c := range []struct {
		name      string
		size, lba nvmf.Bytes
		o         memdev.Options
	}{
		{"no size", 0, 4096, memdev.Options{}},
		{"less than a block", 4095, 4096, memdev.Options{}},
		{"huge", 1 << 50, 4096, memdev.Options{}},
		{"odd blocks", nvmf.MiB, 520, memdev.Options{}},
		{"large blocks", nvmf.MiB, 8192, memdev.Options{}},
		{"odd transfer", nvmf.MiB, 4096, memdev.Options{MaxTransfer: 5000}},
		{"optimal transfer above the maximum", nvmf.MiB, 4096, memdev.Options{MaxTransfer: 8192, OptimalTransfer: 16384}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := memdev.New(c.size, c.lba, c.o)
			assert.ErrorIs(t, err, nvmf.ErrUnsupported)
		})
	}
}
