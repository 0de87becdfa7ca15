package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/bench/stats"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// TestDrillRank has two ranks write with all steps and through the kernel. It checks
// that each step has the properties that its name states.
func TestDrillRank(t *testing.T) {
	const size, transfer = 1<<20 + 5, 32 << 10
	dev, err := memdev.New(256*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	defer dev.Close()
	ranks := make([]*drillRank, 2)
	for i := range ranks {
		ranks[i] = &drillRank{dev: dev}
		require.NoError(t, ranks[i].mount(t.Context(), store.Proc{Rank: i, Size: len(ranks)}))
	}
	dir := filepath.Join(t.TempDir(), "peer")
	execute := func(r *drillRank, command string) map[string]int64 {
		w, err := r.prepare(command)
		require.NoError(t, err)
		took, err := w()
		require.NoError(t, err, command)
		return took
	}
	execute(ranks[0], "mkdir "+dir)
	execute(ranks[0], "mkdir "+dir)
	for i, r := range ranks {
		for k := range 3 {
			file := filepath.Join(dir, fmt.Sprint("ckpt.", i))
			assert.Contains(t, execute(r, fmt.Sprintf("write %d %d %d 1 %s", size, transfer, k, file)), "system")
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Len(t, data, size)
			for step := range drillSteps {
				execute(r, fmt.Sprintf("write %d %d %d 1 %s", size, transfer, k, drillPath(step, k)))
			}
		}
		for step, s := range drillSteps {
			fs := r.fs[step].StatFS()
			assert.Equal(t, s.hugeblock, fs.Hugeblock, s.name)
			assert.Equal(t, uint64(3), fs.Files, "two checkpoints and the root")
			assert.Equal(t, s.whole, fs.Checkpoints >= 3, "%s: %d state checkpoints", s.name, fs.Checkpoints)
			a, err := r.fs[step].Stat(microfs.RootIno, "ckpt.0", true)
			require.NoError(t, err)
			assert.EqualValues(t, size, a.Size)
		}
		for _, bad := range []string{"", "read 1 1 1 1 x", "write 1", "write 1 0 1 1 x"} {
			_, err := r.prepare(bad)
			assert.Error(t, err, "%q", bad)
		}
		w, err := r.prepare("write 1 1 1 1 step:7:x")
		require.NoError(t, err)
		_, err = w()
		assert.Error(t, err)
	}
	execute(ranks[0], "unlink "+filepath.Join(dir, "ckpt.0"))
	execute(ranks[0], "unlink "+filepath.Join(dir, "ckpt.0"))
	for _, r := range ranks {
		require.NoError(t, r.unmount())
	}
}

// TestShare checks the share of two samples, and its description.
func TestShare(t *testing.T) {
	g, err := share(stats.Sample{10, 10, 10}, stats.Sample{5, 8, 9})
	require.NoError(t, err)
	assert.InDelta(t, 0.8, g.Value, 1e-9)
	assert.InDelta(t, 0.5, g.Low, 1e-9)
	assert.InDelta(t, 0.9, g.High, 1e-9)
	assert.Equal(t, "20.0% less time", change(1-g.Value))
	assert.Equal(t, "50.0% more time", change(-0.5))
	assert.Equal(t, "nothing to compare", change(math.NaN()))
}
