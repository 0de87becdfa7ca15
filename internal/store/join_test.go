package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/nvmf"
)

// TestJoin checks that a run with the job id of the run in progress waits until that run accepts others, and then has
// its run id and settings. A run of another job must be refused.
func TestJoin(t *testing.T) {
	t.Parallel()
	first := newStore(t, 64*nvmf.MiB)
	first.Job, first.View = "4711", config.ViewJob
	other, joining := *first, *first
	other.Job = "4712"
	joining.View = config.ViewRank
	var err error
	for _, cfg := range []*config.Config{first, &other, &joining} {
		cfg.Run, err = NewRun(cfg.Run)
		require.NoError(t, err)
	}
	lease, err := TakeOrJoin(ctx, first, quietly)
	require.NoError(t, err)
	require.NotNil(t, lease)
	_, err = TakeOrJoin(ctx, &other, quietly)
	require.ErrorAs(t, err, new(*InProgressError))
	assert.ErrorContains(t, err, "is in use by")

	impatient := joining
	impatient.Timeout = time.Millisecond
	_, err = TakeOrJoin(ctx, &impatient, quietly)
	require.ErrorContains(t, err, "is not ready after 1ms (--timeout)")

	type result struct {
		lease *Lease
		err   error
	}
	joined := make(chan result, 1)
	go func() {
		l, err := TakeOrJoin(ctx, &joining, quietly)
		joined <- result{l, err}
	}()
	select {
	case <-joined:
		t.Fatal("the first run does not let others join yet")
	default:
	}
	first.Index, first.IndexSecret = []string{"10.0.0.5:40000"}, [32]byte{1}
	lease.Open(first)
	r := <-joined
	require.NoError(t, r.err)
	assert.Nil(t, r.lease)
	assert.Equal(t, first.Run, joining.Run)
	assert.Equal(t, config.ViewJob, joining.View)
	assert.Equal(t, first.Index, joining.Index)
	assert.Equal(t, first.IndexSecret, joining.IndexSecret)
	lease.End()
	again, err := TakeOrJoin(ctx, &other, quietly)
	require.NoError(t, err, "that run has ended")
	again.End()
}
