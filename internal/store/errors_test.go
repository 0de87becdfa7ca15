package store

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// noQueue is a device to which no further queue can be opened in time.
type noQueue struct{ nvmf.Device }

func (noQueue) OpenQueue(context.Context, int) (nvmf.Queue, error) {
	return nil, fmt.Errorf("%w: %w", nvmf.ErrUnreachable, nvmf.ErrConnectionLost)
}

// TestQueueToFormatIsNotOpened checks that a process which could not open the queue for formatting tries again: nothing was written.
func TestQueueToFormatIsNotOpened(t *testing.T) {
	inner, err := memdev.New(16*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	dev := noQueue{inner}
	for what, err := range map[string]error{
		"a partition": microfs.Format(ctx, dev, microfs.Segment{Length: 16 * nvmf.MiB}, microfs.FormatOptions{Size: 1, Hugeblock: 32 * nvmf.KiB}),
		"a namespace": parttable.Begin(ctx, dev, nil),
	} {
		require.ErrorIs(t, err, nvmf.ErrConnectionLost, what)
		assert.NotErrorIs(t, halfFormatted(err), ErrHalfFormatted, what)
		assert.True(t, Unavailable(halfFormatted(err)), what)
	}
	assert.ErrorIs(t, halfFormatted(fmt.Errorf("writing: %w", nvmf.ErrConnectionLost)), ErrHalfFormatted)
}
