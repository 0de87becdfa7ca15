package command

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"

	"nvmecr/checkpoint"
	"nvmecr/drain"
)

// TestSurplus checks which checkpoints are removed from a store.
func TestSurplus(t *testing.T) {
	begin := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		keep  retention
		times string // minutes at which checkpoints 0, 1, 2, ... ended
		free  int64
		want  string
	}{
		{retention{count: 2}, "1 2 3 4", 0, "[0 1]"},
		{retention{count: 2}, "1 2", 0, "[]"},
		{retention{count: 1}, "7 8 5 6", 0, "[2 0]"}, // 1 was written last, and 3 has the greatest number
		{retention{count: 2}, "7 8 5 6", 0, "[2]"},
		{retention{count: 2}, "1 2 6 7 3 4 5", 0, "[0 1 4 5]"}, // 6 was written last, since a clock was set back
		{retention{auto: true}, "1 2 3 4", 50, "[0 1]"},
		{retention{auto: true}, "1 2 3 4", 150, "[0]"},
		{retention{auto: true}, "1 2 3 4", 201, "[]"},
	} {
		var stored []*drain.Checkpoint
		for i, text := range strings.Fields(c.times) {
			minutes, _ := time.ParseDuration(text + "m")
			stored = append(stored, &drain.Checkpoint{Set: checkpoint.Set{Name: fmt.Sprint(i), Files: []checkpoint.File{{Size: 100, Modified: begin.Add(minutes)}}}})
		}
		checkpoint.Sort("{step}", stored, func(c **drain.Checkpoint) *checkpoint.Set { return &(*c).Set })
		var have []string
		for _, old := range c.keep.surplus("{step}", stored, c.free) {
			have = append(have, old.Name)
		}
		assert.Equal(t, c.want, fmt.Sprint(have), "%+v", c)
	}
}

// TestMayRemove checks that without a pattern of the user only files that are evidently checkpoints are removed, and that others are named once.
func TestMayRemove(t *testing.T) {
	var said bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetErr(&said)
	list := []drain.Series{{Pattern: "ckpt-{step}/**"}, {Pattern: "mesh_{step}.vtk"}}
	f := &follower{cmd: cmd, spared: map[string]bool{}}
	for range 2 {
		f.findRemovable(list)
		assert.True(t, f.mayRemove(&list[0]))
		assert.False(t, f.mayRemove(&list[1]))
	}
	assert.Equal(t, 1, strings.Count(said.String(), "mesh_{step}.vtk"))
	f.pattern = list[1].Pattern
	f.findRemovable(list[1:])
	assert.True(t, f.mayRemove(&list[1]))
}
