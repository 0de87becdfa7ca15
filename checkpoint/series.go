package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Series is the checkpoints whose names differ in one place only.
type Series struct {
	// Pattern finds its files. For a series that was found without one it is
	// a suggestion, which finds at least these.
	Pattern string
	Sets    []Set // oldest first

	named  bool // by names, not numbers
	worded bool // a word says that these are steps, or checkpoints
}

// Newest returns the last complete set. ok is false if none is complete.
func (s *Series) Newest() (set *Set, ok bool) { return Newest(s.Sets) }

// Undecided returns a set of a series without a complete one, if it cannot be told whether the set is: all that it lacks is files of ranks of
// which an earlier set lacks the same, so these ranks may write none.
func (s *Series) Undecided() (set *Set, ok bool) {
	if _, ok := s.Newest(); ok {
		return nil, false
	}
	var alike []*Set
	for i := range s.Sets {
		if set := &s.Sets[i]; !slices.ContainsFunc(set.Missing, func(p Part) bool { return p.Path != "" }) {
			alike = append(alike, set)
		}
	}
	n := len(alike)
	if n < 2 || !slices.Equal(alike[n-1].Missing, alike[n-2].Missing) {
		return nil, false
	}
	return alike[n-1], true
}

// Find returns the series of checkpoints among files, which are those of all ranks.
// With a pattern it is one, or none if no file matches; without one ("") it is
// all that there are, in order of their patterns. The error is in ErrPattern.
func Find(files []File, text string, job Job) ([]Series, error) {
	places := ranksIn(files, job)
	found := map[string]*collector{}
	if text != "" {
		p, err := parsePattern(text)
		if err != nil {
			return nil, err
		}
		c := &collector{Series: Series{Pattern: text, named: p.named}, job: job}
		for _, f := range files {
			if at, ok := p.find(f.Path); ok {
				c.add(f, at, places.of(f.Path))
				found[""] = c
			}
		}
	} else {
		for _, f := range files {
			all, rank := numbers(f.Path), places.of(f.Path)
			at, worded, ok := findStep(f.Path, all, rank)
			if !ok {
				continue
			}
			stem := stemOf(f.Path, at, all, rank)
			c := found[stem]
			if c == nil {
				c = &collector{Series: Series{Pattern: stem, worded: worded}, job: job}
				found[stem] = c
			}
			c.add(f, at, rank)
		}
	}
	var list []Series
	for _, c := range found {
		if text == "" {
			c.Pattern += stepPlace + c.tail()
		}
		list = append(list, c.series())
	}
	slices.SortFunc(list, func(a, b Series) int { return strings.Compare(a.Pattern, b.Pattern) })
	return list, nil
}

// Errors of Choose.
var (
	ErrNone    = errors.New("no file has a number in its name that could be a step's")
	ErrSeveral = errors.New("there are several series of files that could be checkpoints")
)

// Choose returns the series that is meant where there was no pattern: the only
// one, or the only one that a rank has files of, or of these the only one with a word
// for a step or a checkpoint in front of its number. Otherwise the error is ErrNone, or in ErrSeveral and lists the patterns.
func Choose(list []Series) (*Series, error) {
	if len(list) == 0 {
		return nil, ErrNone
	}
	for _, counts := range []func(*Series) bool{(*Series).ofRanks, func(s *Series) bool { return s.worded }} {
		some := slices.DeleteFunc(slices.Clone(list), func(s Series) bool { return !counts(&s) })
		if len(list) > 1 && len(some) > 0 {
			list = some
		}
	}
	if len(list) > 1 {
		var patterns []string
		for _, s := range list[:min(len(list), maxPatterns)] {
			patterns = append(patterns, s.Pattern)
		}
		if more := len(list) - len(patterns); more > 0 {
			patterns = append(patterns, fmt.Sprintf("and %d more", more))
		}
		return nil, fmt.Errorf("%w: %s", ErrSeveral, strings.Join(patterns, ", "))
	}
	return &list[0], nil
}

// ofRanks says whether a rank has a file of it: others are what the job's script writes.
func (s *Series) ofRanks() bool {
	return slices.ContainsFunc(s.Sets, func(set Set) bool {
		return slices.ContainsFunc(set.Ranks(), func(rank int) bool { return rank >= 0 })
	})
}

// maxPatterns is how many an error lists.
const maxPatterns = 5

// rankPlaces says of paths of one shape, which differ in numbers only, which of
// the numbers are that of the rank in all of them.
type rankPlaces map[string][]bool

func shapeOf(path string) string { return digits.ReplaceAllString(path, "#") }

func ranksIn(files []File, job Job) rankPlaces {
	places := rankPlaces{}
	for _, f := range files {
		if job.Tree && !f.ofRank() {
			continue // it may be of any
		}
		all, shape := numbers(f.Path), shapeOf(f.Path)
		rank, known := places[shape]
		if !known {
			rank = slices.Repeat([]bool{true}, len(all))
			places[shape] = rank
		}
		for i, n := range all {
			rank[i] = rank[i] && plain(n.of(f.Path)) == fmt.Sprint(f.Rank)
		}
	}
	return places
}

func (p rankPlaces) of(path string) []bool {
	if rank, known := p[shapeOf(path)]; known {
		return rank
	}
	return make([]bool, len(numbers(path)))
}

// stemOf returns what is before the step, with * for numbers that may differ
// within a series.
func stemOf(path string, at span, all []number, rank []bool) string {
	var stem strings.Builder
	done := 1 // without the slash in front
	for i, n := range all {
		if n.end <= at.start && (n.ofPart || rank[i] || n.word == epochWord) {
			stem.WriteString(plainPattern(path[done:n.start]) + "*")
			done = n.end
		}
	}
	return stem.String() + plainPattern(path[done:at.start])
}

// plainPattern makes a pattern of a part of a path.
func plainPattern(text string) string {
	return strings.NewReplacer("*", "?", "{", "?").Replace(text)
}

// A part is a file that a set has or should have: of which rank (in a tree of any), and its path
// with stepPlace for what differs, and * for an epoch beside it.
type part struct {
	rank int
	path string
}

func (c *collector) part(f File, at span) part {
	same := func(text string) string { return epochs.ReplaceAllString(text, "${1}*") }
	rank := f.Rank
	if c.job.Tree {
		rank = -1
	}
	return part{rank, same(f.Path[:at.start]) + stepPlace + same(f.Path[at.end:])}
}

// A collector puts the sets of a series together.
type collector struct {
	Series
	job   Job
	sets  map[string]*Set // by plain number, or by name
	ends  map[string]bool // what is behind the steps
	ranks map[int]bool    // that have files, of any set
	// numbered says that the rank's number is in the names.
	numbered bool
}

// add takes a file whose path has the step or name at a place.
func (c *collector) add(f File, at span, rank []bool) {
	if c.sets == nil {
		c.sets, c.ends, c.ranks = map[string]*Set{}, map[string]bool{}, map[int]bool{}
	}
	name := at.of(f.Path)
	key := name
	if !c.named {
		key = plain(name)
	}
	set := c.sets[key]
	if set == nil {
		set = &Set{Name: name}
		c.sets[key] = set
	}
	if set.Name != name {
		set.Name = key
	}
	set.Files = append(set.Files, f)
	c.ends[plainPattern(f.Path[at.end:])] = true
	c.ranks[f.Rank] = true
	for i, n := range numbers(f.Path) {
		own := endsIn(n.word, rankWords) || !n.not && n.start >= at.end
		c.numbered = c.numbered || own && rank[i]
	}
	set.parts = append(set.parts, c.part(f, at))
}

// tail returns a pattern of what is behind the steps.
func (c *collector) tail() string {
	if len(c.ends) == 1 {
		for end := range c.ends {
			return end
		}
	}
	all := func(check func(end string) bool) bool {
		for end := range c.ends {
			if !check(end) {
				return false
			}
		}
		return true
	}
	switch {
	case all(func(end string) bool { return strings.HasPrefix(end, "/") }):
		return "/**"
	case !all(func(end string) bool { return !strings.Contains(end, "/") }):
		return "**"
	case all(func(end string) bool { return strings.HasPrefix(end, ".") }):
		return ".*"
	}
	return "*"
}

// series returns the sets in order, each with what it lacks.
func (c *collector) series() Series {
	s := c.Series
	for _, set := range c.sets {
		set.sort()
		s.Sets = append(s.Sets, *set)
	}
	slices.SortFunc(s.Sets, func(a, b Set) int { return compareSets(&a, &b, c.named) })
	bySize := map[int][]*Set{}
	for i := range s.Sets {
		size := c.job.size(&s.Sets[i])
		bySize[size] = append(bySize[size], &s.Sets[i])
	}
	for size, sets := range bySize {
		judge(sets, c.writers(size))
	}
	return s
}

// Sort orders things that have a set of the pattern each, from wherever it is, as the sets of a Series are: the oldest first.
func Sort[T any](pattern string, list []T, set func(*T) *Set) {
	named := strings.Contains(pattern, namePlace)
	slices.SortStableFunc(list, func(a, b T) int { return compareSets(set(&a), set(&b), named) })
}

func compareSets(a, b *Set, named bool) int {
	if named {
		return cmp.Or(a.Ended().Compare(b.Ended()), strings.Compare(a.Name, b.Name))
	}
	return cmp.Or(compareNumbers(plain(a.Name), plain(b.Name)), a.Ended().Compare(b.Ended()))
}

// oneWriter says that one rank writes for all. In a tree it need not be the same rank at all times: a file's path does not change with it.
func (c *collector) oneWriter() bool {
	if !c.job.Tree {
		return len(c.ranks) <= 1
	}
	for _, set := range c.sets {
		if ranks := set.Ranks(); len(ranks) > 2 || len(ranks) == 2 && ranks[0] >= 0 {
			return false
		}
	}
	return true
}

// writers returns the ranks that are expected to have a part of each set of a job of so many ranks.
func (c *collector) writers(ranks int) []int {
	switch {
	case ranks == 1 && c.job.Tree:
		return nil
	case len(c.job.Writers) > 0:
		return c.job.Writers
	case c.oneWriter() && !c.numbered:
		return nil // each set has a file of it
	}
	all := make([]int, ranks)
	for i := range all {
		all[i] = i
	}
	return all
}
