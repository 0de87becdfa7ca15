package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// TestCheckSizeNamesTheMinimum checks that the error for a store that is too small names the smallest size that is
// accepted.
func TestCheckSizeNamesTheMinimum(t *testing.T) {
	for h := 4 * nvmf.KiB; h <= 4*nvmf.MiB; h *= 2 {
		cfg := config.Default()
		cfg.Hugeblock = h
		cfg.Size = 1
		require.ErrorContains(t, CheckSize(cfg), "--size")
		align := max(segmentAlign, h)
		cfg.Size = parttable.HeadSize.AlignUp(align) + minLength(h).AlignUp(align)
		least := cfg.Size.String()
		require.NoError(t, CheckSize(cfg), "hugeblocks of %s", h)
		cfg.Size -= nvmf.MiB
		err := CheckSize(cfg)
		require.ErrorIs(t, err, microfs.ErrTooSmall)
		assert.ErrorContains(t, err, "at least "+least)
	}
}
