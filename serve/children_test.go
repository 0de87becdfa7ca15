package serve

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/store"
)

// TestChildOfRank checks that a child whose parent has ended gets the files of its rank, in a job's tree too.
func TestChildOfRank(t *testing.T) {
	for _, view := range []config.View{config.ViewJob, config.ViewRank} {
		cfg := config.Default()
		cfg.View = view
		s := New(cfg, t.Logf)
		for _, c := range []struct {
			environment map[string]string
			proc        store.Proc
		}{
			{map[string]string{"PMI_RANK": "1", "PMI_SIZE": "3"}, store.Proc{Rank: 1, Size: 3}},
			{map[string]string{"PMI_RANK": "2", "PMI_SIZE": "3"}, store.Proc{Rank: 2, Size: 3}},
			{nil, store.Proc{Rank: 0, Size: 1}},
		} {
			p, err := s.ofChild(func(name string) string { return c.environment[name] })
			require.NoError(t, err)
			assert.Same(t, s.Process(c.proc), p, "%s %v", view, c.proc)
		}
		_, err := s.ofChild(func(name string) string { return map[string]string{"PMI_RANK": "3", "PMI_SIZE": "3"}[name] })
		assert.ErrorContains(t, err, "PMI_RANK")
		require.NoError(t, s.Close())
	}
}
