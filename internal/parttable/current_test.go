package parttable

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

func TestCurrent(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		name   string
		change func(dev nvmf.Device) error
		want   bool
	}{
		{"nothing", func(nvmf.Device) error { return nil }, true},
		{"read", func(dev nvmf.Device) error { _, err := Read(ctx, dev); return err }, true},
		{"written again", func(dev nvmf.Device) error { return Write(ctx, dev, sample()) }, false},
		{"begun anew", func(dev nvmf.Device) error { return Begin(ctx, dev, nil) }, false},
		{"made anew", func(dev nvmf.Device) error {
			table := sample()
			table.Generation++
			if err := Begin(ctx, dev, nil); err != nil {
				return err
			}
			return Write(ctx, dev, table)
		}, false},
		{"given up", func(dev nvmf.Device) error { return Wipe(ctx, dev) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dev, err := memdev.New(capacity, 4096, memdev.Options{})
			require.NoError(t, err)
			require.NoError(t, Begin(ctx, dev, nil))
			require.NoError(t, Write(ctx, dev, sample()))
			table, err := Read(ctx, dev)
			require.NoError(t, err)
			q, err := dev.OpenQueue(ctx, 8)
			require.NoError(t, err)
			require.NoError(t, tt.change(dev))
			assert.Equal(t, tt.want, table.Current(dev, q))
			require.NoError(t, q.Close())
			assert.False(t, table.Current(dev, q), "on a queue that is closed")
		})
	}
}
