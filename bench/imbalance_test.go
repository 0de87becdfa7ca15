package bench

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestImbalance checks the tables and the finding of the experiment.
func TestImbalance(t *testing.T) {
	r, err := imbalance(t.Context(), &Env{Quick: true})
	require.NoError(t, err)
	r.Name = "imbalance"
	require.NoError(t, r.Check())
	require.Equal(t, "round robin", r.Tables[0].Columns[0].Name)
	for i, row := range r.Tables[0].Lines {
		assert.Equal(t, row.Name == "28", row.Cells[0].Value > 0, "round robin at %s ranks", row.Name)
		assert.Greater(t, row.Cells[1].Value, 0.0)
		if i > 0 {
			assert.Less(t, row.Cells[1].Value, r.Tables[0].Lines[i-1].Cells[1].Value, "more ranks have less imbalance")
		}
	}
	for i, row := range r.Tables[0].Lines {
		last := len(row.Cells) - 1
		assert.InDelta(t, row.Cells[0].Value, row.Cells[last].Value, 1e-9, "the plan is as even as round robin")
		if row.Name != "28" { // 28 ranks are one node, which needs targets of all racks
			assert.Zero(t, r.Tables[2].Lines[i].Cells[0].Value, "a plan keeps data out of the rack")
		}
		assert.Positive(t, r.Tables[2].Lines[i].Cells[1].Value)
	}
	assert.Contains(t, r.Finding, "448 ranks")
}
