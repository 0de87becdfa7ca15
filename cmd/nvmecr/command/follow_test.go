package command

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nvmecr/checkpoint"
	"nvmecr/drain"
	"nvmecr/nvmf"
)

func TestGently(t *testing.T) {
	const gib = 1 << 30
	begin := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	// A checkpoint of 1 GiB with the given writing time and end.
	one := func(took, ended time.Duration) drain.Checkpoint {
		end := begin.Add(ended)
		return drain.Checkpoint{Stored: true, Set: checkpoint.Set{Files: []checkpoint.File{{Size: gib, Closed: true, Created: end.Add(-took), Modified: end}}}}
	}
	for _, c := range []struct {
		name  string
		first bool // the only checkpoint
		took  time.Duration
		gap   time.Duration
		every pace
		limit nvmf.Bytes
		want  int64
	}{
		{"a twentieth of the rate it was written at", false, time.Second, time.Hour, pace{count: 1}, 0, gib / 20},
		{"the first one", true, time.Second, 0, pace{count: 1}, 0, gib / 20},
		{"done before the next one", false, time.Second, 10 * time.Second, pace{count: 1}, 0, gib * 4 / 10},
		{"done before the next one that is copied", false, time.Second, 10 * time.Second, pace{count: 10}, 0, gib / 20},
		{"done before as much time has passed", false, time.Second, time.Hour, pace{time: 20 * time.Second}, 0, gib / 5},
		{"no slower than this", false, time.Hour, 24 * time.Hour, pace{count: 1}, 0, leastRate},
		{"as somebody has said", false, time.Second, time.Hour, pace{count: 1}, 1000, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &drain.Series{Checkpoints: []drain.Checkpoint{one(c.took, 0), one(c.took, c.gap)}}
			if c.first {
				s.Checkpoints = s.Checkpoints[1:]
			}
			f := &follower{limit: c.limit}
			newestOne := &s.Checkpoints[len(s.Checkpoints)-1]
			assert.Equal(t, drain.Options{Limit: c.want, Background: true}, f.throttled(s, newestOne, roundDue, c.every))
			assert.Equal(t, drain.Options{Limit: int64(c.limit)}, f.throttled(s, newestOne, roundNewest, c.every), "the job is about to end")
		})
	}
}
