package command

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/checkpoint"
	"nvmecr/drain"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
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
		{retention{count: 1}, "1 99999999 9 5", 0, "[0 2]"},    // 1 has a time in the future, and 3 the greatest number
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

// TestGivenUp checks which incomplete checkpoints are removed.
func TestGivenUp(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		keep retention
		sets string // names, with - if incomplete, in the order in which they were written, one in a minute
		want string
	}{
		{retention{count: 1}, "1- 2 3- 4", "[1 3]"},
		{retention{count: 2}, "1- 2 3- 4", "[1]"},
		{retention{auto: true}, "1- 2 3- 4", "[1 3]"},
		{retention{count: 2}, "1- 4", "[]"},       // one complete one is too few
		{retention{count: 1}, "1- 3-", "[]"},      // none is complete
		{retention{count: 1}, "2 3-", "[]"},       // it may still be written
		{retention{count: 1}, "1 3- 2", "[]"},     // after a restart from 1 the job is about to write it again
		{retention{count: 1}, "1 3- 2 3", "[]"},   // has been written again
		{retention{count: 1}, "1- 3 2", "[1]"},    // a step back
		{retention{count: 2}, "5 6 2- 1 3", "[]"}, // 2 was begun after the step back
		{retention{count: 2}, "5 6 2- 1 3 4", "[2]"},
	} {
		s := &drain.Series{Pattern: "ckpt.{step}"}
		fields := strings.Fields(c.sets)
		for i, text := range fields {
			name, incomplete := strings.CutSuffix(text, "-")
			at := now.Add(time.Duration(i-len(fields)) * time.Minute)
			set := checkpoint.Set{Name: name, Files: []checkpoint.File{{Size: 100, Created: at, Modified: at}}}
			if incomplete {
				set.Missing = []checkpoint.Part{{Rank: 1}}
			}
			s.Checkpoints = slices.DeleteFunc(s.Checkpoints, func(old drain.Checkpoint) bool { return old.Name == name }) // written again
			s.Checkpoints = append(s.Checkpoints, drain.Checkpoint{Set: set, Stored: true})
		}
		var have []string
		for _, old := range c.keep.givenUp(s, s.Stored(), false) {
			have = append(have, old.Name)
		}
		assert.Equal(t, c.want, fmt.Sprint(have), "%+v", c)
	}
	late := &drain.Series{Pattern: "ckpt.{step}", Checkpoints: []drain.Checkpoint{
		{Set: checkpoint.Set{Name: "1", Missing: []checkpoint.Part{{Rank: 1}}, Files: []checkpoint.File{{Size: 1, Created: now.Add(-3 * time.Hour), Modified: now.Add(-time.Hour)}}}, Stored: true},
		{Set: checkpoint.Set{Name: "2", Files: []checkpoint.File{{Size: 1, Created: now, Modified: now}}}, Stored: true},
	}}
	assert.Empty(t, retention{count: 1}.givenUp(late, late.Stored(), false), "a checkpoint that took longer to write than it has been unchanged")
	assert.Len(t, retention{count: 1}.givenUp(late, late.Stored(), true), 1)
}

// TestRemoveChanged checks that a file which the job has changed since it was listed is not removed.
func TestRemoveChanged(t *testing.T) {
	files := vfs.Microfs(newFS(t))
	var list []checkpoint.File
	for _, name := range []string{"/ck-1/a", "/ck-1/b"} {
		_ = files.Mkdir(microfs.RootIno, "/ck-1", 0o700)
		f, err := files.Open(microfs.RootIno, name, syscall.O_WRONLY|syscall.O_CREAT, 0o600)
		require.NoError(t, err)
		a, err := f.Stat()
		require.NoError(t, err)
		list = append(list, checkpointFile(0, name, a))
		if name == "/ck-1/b" {
			_, err = f.WriteAt([][]byte{[]byte("again")}, 0)
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
	}
	require.NoError(t, removeFiles(files, "ck-{step}/**", list))
	_, err := files.Stat(microfs.RootIno, "/ck-1/a", false)
	require.ErrorIs(t, err, syscall.ENOENT)
	_, err = files.Stat(microfs.RootIno, "/ck-1/b", false)
	require.NoError(t, err)
	require.NoError(t, files.Unlink(microfs.RootIno, "/ck-1/b"))
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
