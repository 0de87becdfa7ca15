package drain

import (
	"cmp"
	"slices"
	"strings"

	"nvmecr/checkpoint"
)

// A Checkpoint is one of a store, of its copies, of the second level, or of several of these.
type Checkpoint struct {
	checkpoint.Set
	Stored bool // it is in the store
	Copied *Set // nil if there are no copies of it
	// Need are the files of Copied that the store has not got, or not all of.
	Need    []int
	Drained *Set // nil if it is not on the second level
}

// A Series is the checkpoints of a pattern on all levels.
type Series struct {
	Pattern     string
	Checkpoints []Checkpoint // oldest first
}

// Newest returns the last complete one, nil if there is none. What is on several levels counts once.
func (s *Series) Newest() *Checkpoint {
	for i := len(s.Checkpoints) - 1; i >= 0; i-- {
		if s.Checkpoints[i].Complete() {
			return &s.Checkpoints[i]
		}
	}
	return nil
}

// Recoverable reports whether copies have what the store lacks of it.
func (c *Checkpoint) Recoverable() bool {
	return c.Copied != nil && len(c.Copied.uncopied(c.Need)) == 0
}

// Stored returns the complete ones of the store, oldest first.
func (s *Series) Stored() (list []*Checkpoint) {
	for i := range s.Checkpoints {
		if c := &s.Checkpoints[i]; c.Stored && c.Complete() {
			list = append(list, c)
		}
	}
	return list
}

// Merge puts the checkpoints of a store, their copies and the sets of the second level together. With a pattern, that by which list was
// found, the sets that it finds count. A set that is in the store with other content is one of its own; one that is
// incomplete there is whole where another level has the same, or copies have what it lacks.
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
	merge(copied, (*Series).addCopies)
	merge(drained, (*Series).addDrained)
	var merged []Series
	for _, s := range all {
		checkpoint.Sort(s.Pattern, s.Checkpoints, func(c *Checkpoint) *checkpoint.Set { return &c.Set })
		merged = append(merged, *s)
	}
	slices.SortFunc(merged, func(a, b Series) int { return strings.Compare(a.Pattern, b.Pattern) })
	return merged
}

// addDrained adds a set of the second level, which is called name.
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

// addCopies adds a set of copies.
func (s *Series) addCopies(d *Set, name string) {
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
	need, _ := d.need(nil)
	c := Checkpoint{Set: checkpoint.Set{Name: name, Files: d.asFiles(), Missing: d.uncopied(need)}, Copied: d, Need: need}
	s.Checkpoints = append(s.Checkpoints, c)
}

// need returns the files of the set that are not among those of a store, or without all of their bytes, as where copying them back was cut short. ok is false if the
// store has others, or other content.
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

// uncopied returns those of files of the set of which there is no copy any more.
func (s *Set) uncopied(files []int) (missing []checkpoint.Part) {
	for _, i := range files {
		if !s.holds(i) {
			missing = append(missing, checkpoint.Part{Rank: s.Files[i].Rank, Path: s.Files[i].Path, Lost: true})
		}
	}
	return missing
}

// found returns the name of the set by a pattern, if the pattern finds it.
func (s *Set) found(pattern string) (name string, ok bool) {
	list, err := checkpoint.Find(s.asFiles(), pattern, checkpoint.Job{Ranks: s.Ranks})
	if err != nil || len(list) != 1 || len(list[0].Sets) != 1 {
		return "", false
	}
	return list[0].Sets[0].Name, true
}

// asFiles returns the files as the store has them.
func (s *Set) asFiles() (list []checkpoint.File) {
	for _, f := range s.Files {
		list = append(list, checkpoint.File{Rank: f.Rank, Path: f.Path, Size: f.Size, Created: f.Modified, Modified: f.Modified, Closed: true})
	}
	return list
}

// is says whether files of the store are those of the set. Who has written them does not matter in a tree.
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

// Share returns the indexes of the files that a rank of so many copies to a tree: those that it has written, where as many ranks have; otherwise
// each has about as many bytes.
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

// fileCost is what a file costs beside its bytes, in bytes: it is created, and closed.
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
