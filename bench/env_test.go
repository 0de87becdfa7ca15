package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// TestCheck checks that invalid settings are refused with the name of their flag.
func TestCheck(t *testing.T) {
	for name, e := range map[string]Env{
		"--ranks: is negative":      {Ranks: -1},
		"--rounds: is negative":     {Rounds: -1},
		"--count: is negative":      {Count: -1},
		"--compute: is negative":    {Compute: -time.Second},
		"--transfer: 100 bytes":     {Transfer: 100},
		"--size: 5000 bytes":        {Size: 5000},
		"no multiple of the 3 MiB":  {Size: 10 * nvmf.MiB, Transfer: 3 * nvmf.MiB},
		"no multiple of the 1 MiB":  {Size: 1028 * nvmf.KiB},
		"there are bandwidth, raw,": {Only: "everything"},
		"--spdk: ":                  {SPDK: t.TempDir()},
	} {
		assert.ErrorContains(t, e.Check(), name)
	}
	for _, e := range []Env{{}, {Size: 9 * nvmf.MiB, Transfer: 3 * nvmf.MiB}, {Size: 512 * nvmf.KiB}, {Only: "raw"}} {
		assert.NoError(t, e.Check())
	}
}

// TestComplete checks the default values of settings: sizes are multiples of the transfer, and
// --quick has few rounds.
func TestComplete(t *testing.T) {
	e := Env{Transfer: 3 * nvmf.MiB}
	e.complete()
	require.NoError(t, e.Check())
	assert.Zero(t, e.Size%e.Transfer)
	assert.Equal(t, usualRounds, e.Rounds)
	quick := Env{Quick: true, Size: 64 * nvmf.KiB}
	quick.complete()
	assert.Equal(t, quickRounds, quick.Rounds)
	assert.Equal(t, quick.Size, quick.Transfer)
}
