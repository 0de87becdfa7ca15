package bench

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/bench/result"
	"nvmecr/nvmf"
)

// TestUse checks the measured memory and media of a partition with many files.
func TestUse(t *testing.T) {
	const data = 8*nvmf.MiB + 5
	u, err := use(t.Context(), 256*nvmf.MiB, data, func(w *worker) error {
		for i := range 3000 {
			if err := w.create(strconv.Itoa(i)); err != nil {
				return err
			}
		}
		return w.write("data", data)
	})
	require.NoError(t, err)
	assert.Equal(t, 3002, u.files) // includes the root directory
	assert.Greater(t, u.heap, 3000*100.0)
	assert.Less(t, u.heap, 3000*2000.0)
	assert.Greater(t, u.remounted, 3000*100.0)
	assert.Greater(t, u.state, 3000*100.0, "an inode has 104 bytes in a state")
	assert.Less(t, u.state, 3000*300.0)
	assert.Greater(t, u.traffic, 3000*4096.0, "a create is a page of the log")
	assert.Less(t, u.traffic, 3000*4096.0+1e6)
	assert.Greater(t, u.reserved, 0.0)
	assert.Less(t, u.reserved, u.capacity/4)
}

// TestMetadataTables checks that small measurements give valid tables and plots.
func TestMetadataTables(t *testing.T) {
	r := &result.Result{Name: "metadata"}
	_, err := againstFiles(t.Context(), r, 2000)
	require.NoError(t, err)
	require.NoError(t, againstData(t.Context(), r, 64*nvmf.MiB))
	require.NoError(t, r.Check())
	assert.Len(t, r.Tables, 2)
	assert.Len(t, r.Plots, 1)
}
