package bench

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/bench/result"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// counting is a queue that counts the commands, and the largest number of commands in flight.
type counting struct {
	nvmf.Queue
	seen          map[nvmf.LBA]int
	busy, highest int
}

func (c *counting) Submit(cmds []*nvmf.Command) {
	for _, cmd := range cmds {
		c.seen[cmd.LBA]++
	}
	c.busy += len(cmds)
	c.highest = max(c.highest, c.busy)
	c.Queue.Submit(cmds)
}

func (c *counting) Wait(cmds []*nvmf.Command) error {
	c.busy = 0 // a device in memory has completed all commands
	return c.Queue.Wait(cmds)
}

// TestStream checks the number of commands, their blocks, and the number of commands in flight.
func TestStream(t *testing.T) {
	dev, err := memdev.New(8*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	defer dev.Close()
	q, err := newRawQueue(t.Context(), dev, 1, 2) // rank 1 of 2 has the second half
	require.NoError(t, err)
	defer q.queue.Close()
	for _, c := range []struct{ depth, count int }{{1, 5}, {8, 1024}, {8, 1500}, {32, 7}} {
		seen := &counting{Queue: q.queue, seen: map[nvmf.LBA]int{}}
		both := *q
		both.queue = seen
		work, err := both.prepareStream(nvmf.Write, 4096, c.depth, c.count)
		require.NoError(t, err)
		took, err := work()
		require.NoError(t, err)
		assert.EqualValues(t, c.count, took["calls"])
		total := 0
		for lba, n := range seen.seen {
			assert.True(t, lba >= 1024 && lba < 2048, "block %d is another rank's", lba)
			assert.LessOrEqual(t, n, (c.count+1023)/1024, "block %d", lba)
			total += n
		}
		assert.Equal(t, c.count, total)
		assert.Equal(t, min(c.depth, c.count), seen.highest)
	}
	_, err = q.prepareStream(nvmf.Write, 5*nvmf.MiB, 1, 1)
	assert.ErrorContains(t, err, "cannot be had")
	_, err = q.prepare("read 40960 4096 1 0 8")
	assert.NoError(t, err, "a number instead of a path")
	_, err = q.prepare("read 40960 4096 1 0 eight")
	assert.NoError(t, err, "a path")
}

// TestDriverWithoutSPDK checks that the goals of the drivers are listed as not measured if SPDK is
// not installed.
func TestDriverWithoutSPDK(t *testing.T) {
	g := &goalRun{Env: &Env{SPDK: t.TempDir()}, res: &result.Result{}}
	require.NoError(t, g.spdkDriver(t.Context()))
	require.Len(t, g.res.Goals, len(driverLoads)*len(driverDepths))
	for _, goal := range g.res.Goals {
		assert.True(t, goal.Absent, goal.What)
		assert.InDelta(t, 0.96, goal.Limit, 0)
	}
}

// TestRankWithoutSPDK checks that the goals of a rank are listed as not measured, with a reason, if
// SPDK is not installed.
func TestRankWithoutSPDK(t *testing.T) {
	g := &goalRun{Env: &Env{SPDK: t.TempDir()}, res: &result.Result{}}
	require.NoError(t, g.spdkRank(t.Context()))
	require.Len(t, g.res.Goals, len(rankLoads))
	for i, goal := range g.res.Goals {
		assert.True(t, goal.Absent, goal.What)
		assert.NotEmpty(t, goal.Why)
		assert.Equal(t, rankLoads[i].limit, goal.Limit)
		assert.Equal(t, goal.Limit == 0, goal.Aside)
	}
}
