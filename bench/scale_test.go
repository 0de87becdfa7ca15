package bench

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/bench/model"
	"nvmecr/bench/result"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// TestScaleShows checks that the tables and plots of a prediction are valid.
func TestScaleShows(t *testing.T) {
	predictions, err := predict(t.Context(), model.PaperFabric, model.Costs{RankMessages: 136, FormatMessages: 100,
		MountOne: 5 * time.Millisecond, MountEach: time.Millisecond, Home: 4, Efficiency: 0.9}, 100_000)
	require.NoError(t, err)
	last := predictions[len(predictions)-1]
	assert.Equal(t, 100_000, last.Ranks)
	assert.Equal(t, last.Prediction.Checkpoint.Seconds(), last.checkpoint("round robin"))
	assert.Greater(t, last.checkpoint("hash ranges"), 1.2*last.checkpoint("round robin"))
	trees := treeTable(model.PaperFabric, model.Costs{Efficiency: 1, Index: model.IndexCosts{Trip: time.Microsecond, Open: time.Microsecond, Create: time.Microsecond}})
	r := result.Result{Name: "scale", Tables: []result.Table{startTable(predictions), loadTable(predictions), trees}, Plots: []result.Plot{startPlot(predictions), checkpointPlot(predictions)}}
	require.NoError(t, r.Check())
}

// TestScaleStops checks that the end of the context ends a prediction.
func TestScaleStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := predict(ctx, model.PaperFabric, model.Costs{Efficiency: 1}, 10)
	assert.ErrorIs(t, err, context.Canceled)
}

// TestScaleMeasures checks the measurements that need no other process.
func TestScaleMeasures(t *testing.T) {
	m := measuring{env: &Env{}, res: &result.Result{}}
	m.table.Columns = []result.Column{{}}
	var c model.Costs
	require.NoError(t, m.balancer(t.Context(), &c))
	assert.Greater(t, c.Home, time.Duration(0))
	assert.Less(t, c.Home, time.Microsecond)
	dev, err := memdev.New(64*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	defer dev.Close()
	write, read, err := tableTimes(t.Context(), dev, 10)
	require.NoError(t, err)
	assert.Len(t, write, 15)
	assert.Len(t, read, 15)
}

// TestProcess checks the processor time and the memory of a process.
func TestProcess(t *testing.T) {
	begin := processTime(os.Getpid())
	assert.Eventually(t, func() bool { return processTime(os.Getpid()) > begin }, time.Minute, time.Millisecond)
	assert.Greater(t, residentSet(os.Getpid()), 1e6)
	assert.Zero(t, residentSet(1<<30))
	assert.Zero(t, processTime(1<<28))
}
