package drain

import (
	"cmp"
	"slices"
	"strings"

	"nvmecr/checkpoint"
)

// A Checkpoint is a checkpoint in a store, in its copies, on the second level, or in several of these.
type Checkpoint struct {
	checkpoint.Set
	Stored bool // it is in the store
	Copied *Set // nil if there are no copies of it
	// Need are the files of Copied that the store has not got, or not all of.
	Need    []int
	Drained *Set // nil if it is not on the second level
}

// A Series has the checkpoints of a pattern on all levels.
type Series struct {
	Pattern     string
	Checkpoints []Checkpoint // oldest first
}

// Newest returns the last complete checkpoint, nil if there is none. A checkpoint on several levels counts once.
func (s *Series) Newest() *Checkpoint {
	for i := len(s.Checkpoints) - 1; i >= 0; i-- {
		if s.Checkpoints[i].Complete() {
			return &s.Checkpoints[i]
		}
	}
	return nil
}

// Recoverable reports whether copies have the files of the checkpoint that the store lacks.
func (c *Checkpoint) Recoverable() bool {
	return c.Copied != nil && len(c.Copied.uncopied(c.Need)) == 0
}

// Protected reports whether the loss of any one failure domain costs nothing of the checkpoint, or with shards of as many domains as there are shards of parity. Copies of
// whole files protect what the store has, too: once that is lost they are all that is left.
func (c *Checkpoint) Protected() bool {
	return c.Copied != nil && c.Copied.Protected() && (c.Copied.Code != (Code{}) || len(c.Need) == 0)
}

// Stored returns the complete checkpoints of the store, oldest first.
func (s *Series) Stored() (list []*Checkpoint) {
	for i := range s.Checkpoints {
		if c := &s.Checkpoints[i]; c.Stored && c.Complete() {
			list = append(list, c)
		}
	}
	return list
}

// Merge combines the checkpoints of a store, of their copies and of the second level. With a pattern, that of list,
// only sets that match it count. A set whose content in the store differs is a checkpoint of its own. A set that is
// incomplete in the store is complete if another level has the same set as a whole, or copies have the missing files.
func Merge(list []checkpoint.Series, copied, drained []Set, pattern string) []Series {
	all := map[string]*Series{}
	at := func(pattern string) *Series {
		if all[pattern] == nil {
			all[pattern] = &Series{Pattern: pattern}
		}
		return all[pattern]
	}
	for _, s := range list {
		to := at(s.Pattern)
		for _, set := range s.Sets {
			to.Checkpoints = append(to.Checkpoints, Checkpoint{Set: set, Stored: true})
		}
	}
	merge := func(sets []Set, add func(s *Series, d *Set, name string)) {
		for i := range sets {
			d := &sets[i]
			if pattern == "" {
				add(at(d.Pattern), d, d.Name)
			} else if name, ok := d.found(pattern); ok {
				add(at(pattern), d, name)
			}
		}
	}
	merge(copied, func(s *Series, d *Set, name string) { s.addCopies(d, name, d.elsewhere(list)) })
	merge(drained, (*Series).addDrained)
	var merged []Series
	for _, s := range all {
		checkpoint.Sort(s.Pattern, s.Checkpoints, func(c *Checkpoint) *checkpoint.Set { return &c.Set })
		merged = append(merged, *s)
	}
	slices.SortFunc(merged, func(a, b Series) int { return strings.Compare(a.Pattern, b.Pattern) })
	return merged
}

// addDrained adds a set of the second level under that name.
func (s *Series) addDrained(d *Set, name string) {
	for i := range s.Checkpoints {
		c := &s.Checkpoints[i]
		if c.Drained == nil && d.is(c.Files) {
			if c.Drained = d; !c.Complete() {
				c.Stored, c.Missing = false, nil
			}
			return
		}
	}
	s.Checkpoints = append(s.Checkpoints, Checkpoint{Set: checkpoint.Set{Name: name, Files: d.asFiles()}, Drained: d})
}

// elsewhere returns the files of the set that a store has in sets of other patterns: where but one file is left of a set, its name fits another pattern.
func (s *Set) elsewhere(list []checkpoint.Series) (left []checkpoint.File) {
	own := make(map[string]bool, len(s.Files))
	for i := range s.Files {
		own[s.In(&s.Files[i])] = true
	}
	for _, series := range list {
		if series.Pattern == s.Pattern {
			continue
		}
		for _, set := range series.Sets {
			for _, f := range set.Files {
				if key := s.In(&File{Rank: f.Rank, Path: f.Path}); own[key] {
					left, own[key] = append(left, f), false
				}
			}
		}
	}
	return left
}

// addCopies adds a set of copies, of which files may be left in sets of other patterns.
func (s *Series) addCopies(d *Set, name string, left []checkpoint.File) {
	for i := range s.Checkpoints {
		c := &s.Checkpoints[i]
		if need, ok := d.need(c.Files); c.Copied == nil && ok {
			if c.Copied, c.Need = d, need; len(need) > 0 {
				c.Files = d.asFiles()
				c.Stored, c.Missing = false, d.uncopied(need)
			}
			return
		}
	}
	need, ok := d.need(left)
	if !ok || len(need) == 0 {
		need, _ = d.need(nil)
	}
	c := Checkpoint{Set: checkpoint.Set{Name: name, Files: d.asFiles(), Missing: d.uncopied(need)}, Copied: d, Need: need}
	s.Checkpoints = append(s.Checkpoints, c)
}

// need returns the files of the set that a store lacks, or has only a part of after an interrupted restore. ok is false
// if the store has other files, or other content.
func (s *Set) need(stored []checkpoint.File) (need []int, ok bool) {
	have := make(map[string]checkpoint.File, len(stored))
	for _, f := range stored {
		have[s.In(&File{Rank: f.Rank, Path: f.Path})] = f
	}
	found := 0
	for i := range s.Files {
		f := &s.Files[i]
		g, there := have[s.In(f)]
		if there {
			found++
		}
		switch {
		case !there || g.Lost || !g.Closed:
			need = append(need, i)
		case g.Size != f.Size || !g.Modified.Equal(f.Modified):
			return nil, false
		}
	}
	return need, found == len(stored)
}

// uncopied returns the files of the set that have no copy any more.
func (s *Set) uncopied(files []int) (missing []checkpoint.Part) {
	for _, i := range files {
		if !s.holds(i) {
			missing = append(missing, checkpoint.Part{Rank: s.Files[i].Rank, Path: s.Files[i].Path, Lost: true})
		}
	}
	return missing
}

// found returns the name of the set by a pattern, if it matches.
func (s *Set) found(pattern string) (name string, ok bool) {
	list, err := checkpoint.Find(s.asFiles(), pattern, checkpoint.Job{Ranks: s.Ranks})
	if err != nil || len(list) != 1 || len(list[0].Sets) != 1 {
		return "", false
	}
	return list[0].Sets[0].Name, true
}

// asFiles returns the files in the form that a store lists.
func (s *Set) asFiles() (list []checkpoint.File) {
	for _, f := range s.Files {
		list = append(list, checkpoint.File{Rank: f.Rank, Path: f.Path, Size: f.Size, Created: f.Modified, Modified: f.Modified, Closed: true})
	}
	return list
}

// is reports whether files of the store are those of the set. In a tree the writer of a file does not matter.
func (s *Set) is(stored []checkpoint.File) bool {
	if len(stored) != len(s.Files) {
		return false
	}
	at := make(map[string]*File, len(s.Files))
	for i := range s.Files {
		at[s.In(&s.Files[i])] = &s.Files[i]
	}
	for _, f := range stored {
		have := at[s.In(&File{Rank: f.Rank, Path: f.Path})]
		if have == nil || have.Size != f.Size || !have.Modified.Equal(f.Modified) {
			return false
		}
	}
	return true
}

// Share returns the indexes of the files that one of ranks ranks restores to a tree: the files that it has written, if
// the job had as many ranks; otherwise each rank gets about as many bytes.
func (s *Set) Share(rank, ranks int) (mine []int) {
	order := make([]int, 0, len(s.Files))
	load := make([]int64, ranks)
	take := func(i, by int) {
		load[by] += s.Files[i].Size + fileCost
		if by == rank {
			mine = append(mine, i)
		}
	}
	for i, f := range s.Files {
		if ranks == s.Ranks && f.Rank >= 0 && f.Rank < ranks {
			take(i, f.Rank)
		} else {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.Files[b].Size, s.Files[a].Size) })
	for _, i := range order {
		take(i, slices.Index(load, slices.Min(load)))
	}
	slices.Sort(mine)
	return mine
}

// fileCost is the cost of creating and closing a file, in bytes.
const fileCost = 64 << 10

// Of returns the indexes of the files of a rank; of those of no rank if it is negative.
func (s *Set) Of(rank int) (mine []int) {
	for i, f := range s.Files {
		if f.Rank == rank || f.Rank < 0 && rank < 0 {
			mine = append(mine, i)
		}
	}
	return mine
}
