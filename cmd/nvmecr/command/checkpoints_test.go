package command

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/checkpoint"
	"nvmecr/drain"
)

// TestPrintCheckpoints checks the ranks and the times of verification in the table.
func TestPrintCheckpoints(t *testing.T) {
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)
	files := func(created, modified time.Time, ranks ...int) (list []checkpoint.File) {
		for _, rank := range ranks {
			list = append(list, checkpoint.File{Rank: rank, Path: "/x", Size: 1, Created: created, Modified: modified})
		}
		return list
	}
	old := at.Add(-time.Hour)
	drained := &drain.Set{Drained: at.Add(time.Second)}
	var b strings.Builder
	require.NoError(t, printCheckpoints(&b, []drain.Series{{Pattern: "x.{step}", Checkpoints: []drain.Checkpoint{
		{Set: checkpoint.Set{Name: "1", Files: files(old, old, 0, 0, 1, 4)}, Stored: true},
		{Set: checkpoint.Set{Name: "2", Files: files(old, old, -1)}, Stored: true, Drained: drained},
		{Set: checkpoint.Set{Name: "3", Files: files(old, at, 0)}, Stored: true, Drained: drained},
		{Set: checkpoint.Set{Name: "4", Files: files(at, old, 0)}, Stored: true}, // restored with its old times
		{Set: checkpoint.Set{Name: "5", Files: files(old, old, 0)}, Drained: drained},
	}}}, at))
	lines := strings.Split(b.String(), "\n")
	for i, want := range []string{
		`PATTERN +NAME +RANKS +FILES .* VERIFIED +COMPLETE`,
		`1 +3 +4 .* store +2026-01-02 12:00:00 +yes`,
		`2 +- +1 .* store, level2 +2026-01-02 12:00:00, 2026-01-02 12:00:01 +yes`,
		`3 +1 +1 .* store, level2 +-, 2026-01-02 12:00:01 +yes`,
		`4 +1 +1 .* store +- +yes`,
		`5 +1 +1 .* level2 +2026-01-02 12:00:01 +yes`,
	} {
		assert.Regexp(t, want, lines[i])
	}
}
