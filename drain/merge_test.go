package drain

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/checkpoint"
)

// TestMergeCopies checks that a checkpoint is complete if each file is unchanged in the store, or has a copy.
func TestMergeCopies(t *testing.T) {
	s, m, _ := ofRanks(t, "400", 3, 10)
	fleet := newFleet(t, 8<<20, "a", "b", "c")
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{})
	require.NoError(t, err)
	stored := func(edit func(f *checkpoint.File) bool) []checkpoint.Series {
		var files []checkpoint.File
		for _, f := range s.asFiles() {
			if edit(&f) {
				files = append(files, f)
			}
		}
		return []checkpoint.Series{{Pattern: s.Pattern, Sets: []checkpoint.Set{{Name: s.Name, Files: files}}}}
	}
	for _, c := range []struct {
		name     string
		without  []string
		edit     func(f *checkpoint.File) bool // false: the store lacks the file
		sets     int
		need     int
		complete bool
	}{
		{"all is there", nil, func(*checkpoint.File) bool { return true }, 1, 0, true},
		{"lost with b, where no copies of it are", []string{"b"}, func(f *checkpoint.File) bool {
			f.Lost = f.Path == "/melt.400.1"
			return true
		}, 1, 1, true},
		{"what b had a copy of is lost, too", []string{"b"}, func(f *checkpoint.File) bool {
			f.Lost = f.Path == "/melt.400.0"
			return true
		}, 1, 1, false},
		{"not there", nil, func(f *checkpoint.File) bool { return f.Path != "/melt.400.2" }, 1, 1, true},
		{"nothing there, with a", []string{"a"}, func(*checkpoint.File) bool { return false }, 1, 4, true},
		{"copied back, and killed there", []string{"b"}, func(f *checkpoint.File) bool {
			if f.Path == "/melt.400.1" {
				f.Modified, f.Closed = f.Modified.Add(1), false
			}
			return true
		}, 1, 1, true},
		{"written again", nil, func(f *checkpoint.File) bool {
			f.Modified = f.Modified.Add(1)
			return true
		}, 2, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			sets, err := fleet.mount(t, true, c.without...).Sets()
			require.NoError(t, err)
			merged := Merge(stored(c.edit), nil, sets, nil, "")
			require.Len(t, merged, 1)
			require.Len(t, merged[0].Checkpoints, c.sets)
			got := &merged[0].Checkpoints[c.sets-1]
			require.Len(t, got.Need, c.need)
			assert.Equal(t, c.complete, got.Complete())
			assert.Equal(t, c.complete && c.sets == 1, got.Recoverable())
			assert.Equal(t, c.need == 0, got.Stored)
		})
	}
}

// TestMergeElsewhere checks that the remaining files of a checkpoint count even if, without the lost ones, their names match another
// pattern. Files of the store with other content are listed, since restoring the checkpoint would replace them.
func TestMergeElsewhere(t *testing.T) {
	s, m, _ := ofRanks(t, "400", 3, 10)
	fleet := newFleet(t, 8<<20, "a", "b", "c")
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{})
	require.NoError(t, err)
	copies, err := fleet.mount(t, true, "b").Sets()
	require.NoError(t, err)
	for _, c := range []struct {
		name     string
		pattern  string // pattern of the files of the store, or "" if they match none
		edit     func(f *checkpoint.File) bool
		need     int
		inStore  bool
		replaced int
	}{
		{"one is lost", "melt.4*.{step}", func(f *checkpoint.File) bool { return f.Path != "/melt.400.1" }, 1, false, 0},
		{"all are there", "melt.4*.{step}", func(*checkpoint.File) bool { return true }, 0, true, 0},
		{"all are there, without a number", "", func(*checkpoint.File) bool { return true }, 0, true, 0},
		{"one was written again", "melt.4*.{step}", func(f *checkpoint.File) bool {
			if f.Path == "/melt.400.1" {
				f.Size++
			}
			return true
		}, 4, false, 1},
		{"one was written again, without a number", "", func(f *checkpoint.File) bool {
			f.Modified = f.Modified.Add(1)
			return f.Path == "/melt.400.1"
		}, 4, false, 1},
		{"one is being written", "melt.4*.{step}", func(f *checkpoint.File) bool {
			f.Closed = f.Path != "/melt.400.1"
			return true
		}, 1, false, 0},
		{"one of the series was written again", s.Pattern, func(f *checkpoint.File) bool {
			f.Modified = f.Modified.Add(1)
			return true
		}, 4, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var files []checkpoint.File
			for _, f := range s.asFiles() {
				if c.edit(&f) {
					files = append(files, f)
				}
			}
			var list []checkpoint.Series
			if c.pattern != "" {
				list = []checkpoint.Series{{Pattern: c.pattern, Sets: []checkpoint.Set{{Name: s.Name, Files: files}}}}
			}
			find := func(merged []Series, level func(*Checkpoint) *Set) *Checkpoint {
				for _, series := range merged {
					for i := range series.Checkpoints {
						if series.Pattern == s.Pattern && level(&series.Checkpoints[i]) != nil {
							return &series.Checkpoints[i]
						}
					}
				}
				return nil
			}
			got := find(Merge(list, files, copies, nil, ""), func(c *Checkpoint) *Set { return c.Copied })
			require.NotNil(t, got)
			assert.Len(t, got.Need, c.need)
			assert.Equal(t, c.inStore, got.InStore())
			assert.Len(t, got.Replaced, c.replaced)
			if c.need == 1 {
				assert.True(t, got.Complete() && got.Recoverable())
			}
			got = find(Merge(list, files, nil, copies, ""), func(c *Checkpoint) *Set { return c.Drained })
			require.NotNil(t, got)
			assert.Len(t, got.Lacking, c.need)
			assert.Equal(t, c.inStore, got.InStore())
			assert.Len(t, got.Replaced, c.replaced)
		})
	}
}

// TestMergeIncomplete merges a set of the second level with the same set of a store that is not complete there.
func TestMergeIncomplete(t *testing.T) {
	s, _, _ := ofRanks(t, "400", 3, 10)
	for _, c := range []struct {
		name    string
		edit    func(f *checkpoint.File)
		lacking []int
		inStore bool
	}{
		{"lost", func(f *checkpoint.File) { f.Lost = true }, []int{1}, false},
		{"not closed", func(f *checkpoint.File) { f.Closed = false }, []int{1}, false},
		{"of a file that others have", func(*checkpoint.File) {}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := s.asFiles()
			c.edit(&files[1])
			set := checkpoint.Set{Name: s.Name, Files: files, Missing: []checkpoint.Part{{Path: "/melt.400.1"}}}
			merged := Merge([]checkpoint.Series{{Pattern: s.Pattern, Sets: []checkpoint.Set{set}}}, files, nil, []Set{*s}, "")
			require.Len(t, merged, 1)
			require.Len(t, merged[0].Checkpoints, 1)
			got := merged[0].Checkpoints[0]
			assert.True(t, got.Complete())
			assert.Equal(t, c.lacking, got.Lacking)
			assert.Equal(t, c.inStore, got.InStore())
		})
	}
}

// TestAway checks that a checkpoint with files that cannot be reached now is complete only if another level has them.
func TestAway(t *testing.T) {
	s, m, _ := ofRanks(t, "400", 3, 10)
	fleet := newFleet(t, 8<<20, "a", "b", "c")
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{})
	require.NoError(t, err)
	list := []checkpoint.Series{{Pattern: s.Pattern, Sets: []checkpoint.Set{{Name: s.Name, Files: s.asFiles()}}}}
	isAway := func(f *checkpoint.File) bool { return f.Path == "/melt.400.1" }
	for _, c := range []struct {
		name     string
		on       []string
		drained  []Set
		complete bool
	}{
		{"only in the store", nil, nil, false},
		{"copies", []string{"a", "b", "c"}, nil, true},
		{"copies without that of the file", []string{"a", "b"}, nil, false},
		{"second level", nil, []Set{*s}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var copied []Set
			if c.on != nil {
				without := slices.DeleteFunc([]string{"a", "b", "c"}, func(name string) bool { return slices.Contains(c.on, name) })
				copied, err = fleet.mount(t, true, without...).Sets()
				require.NoError(t, err)
			}
			got := &Merge(list, s.asFiles(), copied, c.drained, "")[0].Checkpoints[0]
			require.True(t, got.InStore() && got.Complete())
			got.Away(func(*checkpoint.File) bool { return false })
			require.True(t, got.InStore() && got.Complete())
			got.Away(isAway)
			assert.False(t, got.InStore())
			assert.False(t, got.Protected())
			assert.Equal(t, c.complete, got.Complete(), got.Missing)
		})
	}
}

// TestMergeStem merges sets of one series whose patterns differ behind the step, since that part depends on the files of each level.
func TestMergeStem(t *testing.T) {
	one, m, _ := ofRanks(t, "400", 1, 10)
	fleet := newFleet(t, 8<<20, "a", "b", "c")
	_, err := fleet.mount(t, false).Put(t.Context(), one, m, inTree(3), Options{})
	require.NoError(t, err)
	sets, err := fleet.mount(t, true).Sets()
	require.NoError(t, err)
	sets[0].Pattern = "melt.{step}.0"
	stored := checkpoint.Set{Name: "400", Files: one.asFiles()}
	more := checkpoint.Set{Name: "500", Files: []checkpoint.File{{Path: "/melt.500.0", Modified: stored.Ended()}, {Path: "/melt.500.base"}}}
	merged := Merge([]checkpoint.Series{{Pattern: "melt.{step}.*", Sets: []checkpoint.Set{stored, more}}}, nil, sets, nil, "")
	require.Len(t, merged, 1)
	assert.Equal(t, "melt.{step}.*", merged[0].Pattern)
	require.Len(t, merged[0].Checkpoints, 2)
	assert.NotNil(t, merged[0].Checkpoints[0].Copied)
	assert.False(t, merged[0].Rewritten(&merged[0].Checkpoints[0]))

	sets[0].Files[0].Size++ // the checkpoint was written again
	merged = Merge([]checkpoint.Series{{Pattern: "melt.{step}.*", Sets: []checkpoint.Set{stored, more}}}, nil, sets, nil, "")
	require.Len(t, merged[0].Checkpoints, 3)
	for i := range 2 {
		c := &merged[0].Checkpoints[i]
		assert.Equal(t, !c.Stored, merged[0].Rewritten(c))
	}
}
