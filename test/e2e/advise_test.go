package e2e

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
)

// TestAdvise checks the advice from the checkpoints in a store.
func TestAdvise(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.View = config.ViewJob
	call(t, s, "advise", "--mtbf", "1h").refused(t, `no store "default"`)
	sh(t, s, "for step in 1 2 3; do mkdir /nvmecr/ck-$step; for r in 0 1 2; do head -c 1000 /dev/zero > /nvmecr/ck-$step/rank$r; done; sleep 0.1; done", "--size", "64M").ok(t)
	call(t, s, "advise").refused(t, "--mtbf", "24h")
	call(t, s, "advise", "--mtbf", "often").refused(t, "often")
	var a struct {
		Pattern                          string
		Checkpoints                      int
		Size                             int64
		Cost, Interval, Best, LostAtBest float64
		Level2Every                      int
	}
	require.NoError(t, json.Unmarshal([]byte(call(t, s, "advise", "--mtbf", "7d", "--mtbf2", "700d", "--json").ok(t)), &a))
	assert.Equal(t, "ck-{step}/**", a.Pattern)
	assert.Equal(t, []any{3, int64(3000), 10}, []any{a.Checkpoints, a.Size, a.Level2Every})
	assert.Positive(t, a.Cost)
	assert.GreaterOrEqual(t, a.Interval, 0.1)
	assert.Greater(t, a.Best, a.Cost)
	assert.Less(t, a.LostAtBest, 1.0)
	assert.Contains(t, call(t, s, "advise", "--mtbf", "7d", "--mtbf2", "700d").ok(t), "each 10th: --level2-every 10\n")
}
