package drain

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"nvmecr/checkpoint"
)

// A Checkpoint is a checkpoint in a store, in its copies, on the second level, or in several of these.
type Checkpoint struct {
	checkpoint.Set
	Stored bool // it is in the store
	// Elsewhere is true if the store has all files of the checkpoint, but in series of other patterns, which match their names.
	Elsewhere bool
	// Replaced lists files of the store that have the names of files of this checkpoint and other content, and belong to
	// other series or to none. Restoring this checkpoint would replace these files.
	Replaced []checkpoint.File
	Copied   *Set // nil if there are no copies of the checkpoint
	// Need lists the files of Copied that are missing from the store or incomplete there.
	Need    []int
	Drained *Set // nil if it is not on the second level
	// Lacking lists the files of Drained that are missing from the store or incomplete there.
	Lacking []int
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

// Away notes that files of a checkpoint in the store are on a target that cannot be reached now. The checkpoint counts as complete only if another level has
// these files.
func (c *Checkpoint) Away(is func(*checkpoint.File) bool) {
	if !c.InStore() {
		return
	}
	var missing []checkpoint.Part
	for i := range c.Files {
		if f := &c.Files[i]; is(f) {
			missing = append(missing, checkpoint.Part{Rank: f.Rank, Path: f.Path, Away: true})
		}
	}
	if len(missing) == 0 {
		return
	}
	c.Stored, c.Elsewhere = false, false
	if c.Copied != nil {
		for i := range c.Copied.Files {
			if f := &c.Copied.Files[i]; is(&checkpoint.File{Rank: f.Rank, Path: f.Path}) {
				c.Need = append(c.Need, i)
			}
		}
	}
	if c.Drained == nil && !c.Recoverable() {
		c.Missing = append(c.Missing, missing...)
	}
}

// Recoverable reports whether copies have the files of the checkpoint that the store lacks.
func (c *Checkpoint) Recoverable() bool {
	return c.Copied != nil && len(c.Copied.uncopied(c.Need)) == 0
}

// Protected reports whether the checkpoint survives the loss of any failure domain, or with shards of as many domains
// as there are parity shards. Copies of whole files protect only a checkpoint that is in the store, too.
func (c *Checkpoint) Protected() bool {
	return c.Copied != nil && c.Copied.Protected() && (c.Copied.Code != (Code{}) || len(c.Need) == 0)
}

// Rewritten reports whether the store has a complete checkpoint of the same name, with other content.
func (s *Series) Rewritten(c *Checkpoint) bool {
	return slices.ContainsFunc(s.Stored(), func(other *Checkpoint) bool { return other != c && other.Name == c.Name })
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

// InStore reports whether the store has all files of the checkpoint, even if their names match other patterns.
func (c *Checkpoint) InStore() bool { return c.Stored || c.Elsewhere }

// Merge combines the checkpoints of a store, of their copies and of the second level. With a pattern, that of list,
// only sets that match it count. Without one the sets of one [checkpoint.Stem] are one series: the rest of its pattern depends on
// the files that were there when it was found. A set whose content in the store differs is a checkpoint of its own. A set that is
// incomplete in the store is complete if another level has the same set as a whole, or copies have the missing files.
// files are all files of the store; those of list need not be among them.
func Merge(list []checkpoint.Series, files []checkpoint.File, copied, drained []Set, pattern string) []Series {
	all := map[string]*Series{}
	at := func(pattern string) *Series {
		stem := checkpoint.Stem(pattern)
		if s := all[stem]; s != nil {
			s.Pattern = checkpoint.Join(s.Pattern, pattern)
		} else {
			all[stem] = &Series{Pattern: pattern}
		}
		return all[stem]
	}
	stored := newStoredFiles(files)
	for _, s := range list {
		to := at(s.Pattern)
		for _, set := range s.Sets {
			to.Checkpoints = append(to.Checkpoints, Checkpoint{Set: set, Stored: true})
			stored.add(set.Files, to)
		}
	}
	merge := func(sets []Set, add func(s *Series, d *Set, name string, stored storedFiles)) {
		for i := range sets {
			d := &sets[i]
			if pattern == "" {
				add(at(d.Pattern), d, d.Name, stored)
			} else if name, ok := d.nameBy(pattern); ok {
				add(at(pattern), d, name, stored)
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

// storedFiles are the files of a store, by rank and path. In a tree a path is one file, and the rank does not matter.
type storedFiles struct {
	private, tree map[string]*storedFile
}

// A storedFile is a file of a store, and its series; nil if it has none.
type storedFile struct {
	checkpoint.File
	of *Series
}

func newStoredFiles(files []checkpoint.File) storedFiles {
	s := storedFiles{map[string]*storedFile{}, map[string]*storedFile{}}
	s.add(files, nil)
	return s
}

func (s storedFiles) add(files []checkpoint.File, of *Series) {
	for _, f := range files {
		named := &storedFile{f, of}
		s.private[inSet(false, f.Rank, f.Path)], s.tree[inSet(true, f.Rank, f.Path)] = named, named
	}
}

// get returns the file of the store with the name of a file of a set; nil if there is none.
func (s storedFiles) get(d *Set, f *File) *storedFile {
	if d.Tree {
		return s.tree[d.In(f)]
	}
	return s.private[d.In(f)]
}

// addDrained adds a set of the second level under that name.
func (s *Series) addDrained(d *Set, name string, stored storedFiles) {
	for i := range s.Checkpoints {
		c := &s.Checkpoints[i]
		if c.Drained == nil && d.matches(c.Files) {
			if c.Drained, c.Lacking = d, c.compare(d, s, stored); !c.Complete() {
				c.Stored, c.Missing, c.Elsewhere = false, nil, len(c.Lacking) == 0
			}
			return
		}
	}
	c := Checkpoint{Set: checkpoint.Set{Name: name, Files: d.asFiles()}, Drained: d}
	c.Lacking = c.compare(d, s, stored)
	c.Elsewhere = len(c.Lacking) == 0
	s.Checkpoints = append(s.Checkpoints, c)
}

// addCopies adds a set of copies. stored are the files of the store, since files of the set can be in series of other patterns.
func (s *Series) addCopies(d *Set, name string, stored storedFiles) {
	for i := range s.Checkpoints {
		c := &s.Checkpoints[i]
		if c.Copied != nil || !d.fits(c.Files) {
			continue
		}
		c.Copied = d
		if c.Need = c.compare(d, s, stored); len(c.Need) > 0 {
			c.Files = d.asFiles()
			c.Stored, c.Missing = false, d.uncopied(c.Need)
		}
		return
	}
	c := Checkpoint{Set: checkpoint.Set{Name: name, Files: d.asFiles()}, Copied: d}
	c.Need = c.compare(d, s, stored)
	c.Elsewhere, c.Missing = len(c.Need) == 0, d.uncopied(c.Need)
	s.Checkpoints = append(s.Checkpoints, c)
}

// compare returns the files of the set d that the store lacks, or has only a part of after an interrupted restore. of is the series of
// the set. If the store has a file with other content, all files of the set are needed. compare fills in Replaced.
func (c *Checkpoint) compare(d *Set, of *Series, stored storedFiles) (need []int) {
	all := make([]int, len(d.Files))
	other := false
	for i := range d.Files {
		f := &d.Files[i]
		all[i] = i
		switch g := stored.get(d, f); {
		case g == nil || g.Lost || !g.Closed:
			need = append(need, i)
		case f.differs(g.File):
			other = true
			if g.of != of {
				c.Replaced = append(c.Replaced, g.File)
			}
		}
	}
	if other {
		return all
	}
	return need
}

// differs reports whether a file of the store has other content than the file of the set.
func (f *File) differs(g checkpoint.File) bool {
	return g.Size != f.Size || !g.Modified.Equal(f.Modified)
}

// fits reports whether a set of the store is this one, or what a loss or an interrupted restore has left of it: the set of the store has
// no other file, and no other content.
func (s *Set) fits(stored []checkpoint.File) bool {
	own := make(map[string]*File, len(s.Files))
	for i := range s.Files {
		own[s.In(&s.Files[i])] = &s.Files[i]
	}
	return !slices.ContainsFunc(stored, func(g checkpoint.File) bool {
		f := own[inSet(s.Tree, g.Rank, g.Path)]
		return f == nil || g.Closed && !g.Lost && f.differs(g)
	})
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

// nameBy returns the name of the set according to a pattern, if the pattern matches.
func (s *Set) nameBy(pattern string) (name string, ok bool) {
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

// written returns when the files of the set were written.
func (s *Set) written() time.Time { return s.plain().Written() }

// plain returns the set in the form that a store lists.
func (s *Set) plain() *checkpoint.Set { return &checkpoint.Set{Name: s.Name, Files: s.asFiles()} }

// bySeries returns the sets by the [checkpoint.Stem] of their patterns, each series in the order of a Series: the oldest first.
func bySeries(sets []Set) map[string][]Set {
	all := map[string][]Set{}
	for _, s := range sets {
		stem := checkpoint.Stem(s.Pattern)
		all[stem] = append(all[stem], s)
	}
	for _, list := range all {
		checkpoint.Sort(list[0].Pattern, list, (*Set).plain)
	}
	return all
}

// matches reports whether files of the store are those of the set. In a tree the writer of a file does not matter.
func (s *Set) matches(stored []checkpoint.File) bool {
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

// Share returns the indexes of the files that one of several ranks restores to a tree: the files that it has written,
// if the job had as many ranks; otherwise files of about an equal number of bytes.
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

// Of returns the indexes of the files of a rank; of files without a rank if it is negative.
func (s *Set) Of(rank int) (mine []int) {
	for i, f := range s.Files {
		if f.Rank == rank || f.Rank < 0 && rank < 0 {
			mine = append(mine, i)
		}
	}
	return mine
}
