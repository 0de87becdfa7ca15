package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Series is the checkpoints whose names differ in one place only.
type Series struct {
	// Pattern matches the files of the series. For a series that was found without a pattern it is a suggestion, which
	// matches at least these files.
	Pattern string
	Sets    []Set // oldest first

	named bool // sets are distinguished by names, not numbers
}

// Newest returns the last complete set. ok is false if none is complete.
func (s *Series) Newest() (set *Set, ok bool) { return Newest(s.Sets) }

// Undecided returns a set of a series that has no complete one, if it cannot be told whether the set is complete: it
// lacks only files of ranks of which an earlier set lacks the same files, so these ranks may write none.
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

// Find returns the series of checkpoints among files, the files of all ranks. With a pattern the result is one series,
// or none if no file matches. Without a pattern ("") it is all series, in order of their patterns. Errors wrap
// ErrPattern.
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
				c.add(f, at, places.of(f.Path).is)
				found[""] = c
			}
		}
	} else {
		for _, f := range files {
			all, rank := numbers(f.Path), places.of(f.Path)
			at, ok := findStep(f.Path, all, rank)
			if !ok {
				continue
			}
			stem := stemOf(f.Path, at, all, rank.is)
			c := found[stem]
			if c == nil {
				c = &collector{Series: Series{Pattern: stem}, job: job}
				found[stem] = c
			}
			c.add(f, at, rank.is)
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

// Choose returns the series that the user means if no pattern was given: the only series; else the only one of which a
// rank has files; else the only one of these with a word for a step or a checkpoint in front of its number. Otherwise
// the error is ErrNone, or wraps ErrSeveral and lists the patterns.
func Choose(list []Series) (*Series, error) {
	if len(list) == 0 {
		return nil, ErrNone
	}
	for _, counts := range []func(*Series) bool{(*Series).ofRanks, (*Series).worded} {
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

// Evident returns the series that are checkpoints beyond doubt, so that old ones may be removed without asking: those with a word for a step or a checkpoint
// in front of the number; or, if there is none, those with files of several ranks. Others may be input or results.
func Evident(list []Series) (some []Series) {
	for _, is := range []func(*Series) bool{(*Series).worded, (*Series).ofSeveral} {
		for i := range list {
			if is(&list[i]) {
				some = append(some, list[i])
			}
		}
		if len(some) > 0 {
			break
		}
	}
	return some
}

func (s *Series) worded() bool { return Worded(s.Pattern) }

// ofSeveral reports whether several ranks have files of one set.
func (s *Series) ofSeveral() bool {
	return slices.ContainsFunc(s.Sets, func(set Set) bool {
		ranks := set.Ranks()
		return len(ranks) > 1 && ranks[len(ranks)-2] >= 0
	})
}

// ofRanks reports whether a rank has a file of the series. Job scripts write the others.
func (s *Series) ofRanks() bool {
	return slices.ContainsFunc(s.Sets, func(set Set) bool {
		return slices.ContainsFunc(set.Ranks(), func(rank int) bool { return rank >= 0 })
	})
}

// maxPatterns is the number of patterns that an error lists.
const maxPatterns = 5

// rankPlaces maps a path with its numbers replaced to what is known of the rank's number in paths of that form.
type rankPlaces map[string]rankPlace

// A rankPlace tells which numbers are the rank's in all paths of one form: equal to it, or one more where ranks are counted from 1.
// If one rank has all of these paths the equality may be chance.
type rankPlace struct {
	is, isNext []bool // the number is the rank; it is the rank + 1
	rank       int
	several    bool // ranks have such files
}

func shapeOf(path string) string { return digits.ReplaceAllString(path, "#") }

func ranksIn(files []File, job Job) rankPlaces {
	places := rankPlaces{}
	for _, f := range files {
		if job.Tree && !f.ofRank() {
			continue // its rank is unknown
		}
		all, shape := numbers(f.Path), shapeOf(f.Path)
		place, known := places[shape]
		if !known {
			place = rankPlace{is: slices.Repeat([]bool{true}, len(all)), isNext: slices.Repeat([]bool{true}, len(all)), rank: f.Rank}
		}
		place.several = place.several || f.Rank != place.rank
		for i, n := range all {
			text := plain(n.of(f.Path))
			place.is[i] = place.is[i] && text == fmt.Sprint(f.Rank)
			place.isNext[i] = place.isNext[i] && text == fmt.Sprint(f.Rank+1)
		}
		places[shape] = place
	}
	for _, place := range places {
		for i := range place.is {
			place.is[i] = place.is[i] || place.isNext[i] && place.several // of one rank, 1 is a step
		}
	}
	return places
}

func (p rankPlaces) of(path string) rankPlace {
	if place, known := p[shapeOf(path)]; known {
		return place
	}
	return rankPlace{is: make([]bool, len(numbers(path)))}
}

// stemOf returns what is before the step, with * for numbers that may differ
// within a series.
func stemOf(path string, at span, all []number, rank []bool) string {
	var stem strings.Builder
	done := 1 // skip the leading slash
	for i, n := range all {
		if n.end <= at.start && (n.ofPart || rank[i] || n.word == epochWord) {
			stem.WriteString(plainPattern(path[done:n.start]) + "*")
			done = n.end
		}
	}
	return stem.String() + plainPattern(path[done:at.start])
}

// plainPattern escapes a part of a path for use in a pattern.
func plainPattern(text string) string {
	return strings.NewReplacer("*", "?", "{", "?").Replace(text)
}

// A part is a file that a set has or should have: its rank (any rank in a tree), and its path with stepPlace in the
// place of the number, and * in the place of an epoch.
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

// A collector groups files into the sets of a series.
type collector struct {
	Series
	job   Job
	sets  map[string]*Set // by number without leading zeros, or by name
	ends  map[string]bool // text behind the steps
	ranks map[int]bool    // ranks that have files in any set
	// numbered is true if the rank's number is in the names.
	numbered bool
}

// add adds a file whose path has the step or name at place.
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
		own := endsIn(n.word, rankWords) || !n.excluded && n.start >= at.end
		c.numbered = c.numbered || own && rank[i]
	}
	set.parts = append(set.parts, c.part(f, at))
}

// tail returns a pattern of the parts of paths behind the steps.
func (c *collector) tail() string { return tailOf(slices.Collect(maps.Keys(c.ends))) }

// tailOf returns a pattern that matches all of some patterns, each of a part of a path behind the step.
func tailOf(ends []string) string {
	if len(ends) == 1 {
		return ends[0]
	}
	all := func(check func(end string) bool) bool {
		return !slices.ContainsFunc(ends, func(end string) bool { return !check(end) })
	}
	switch {
	case all(func(end string) bool { return strings.HasPrefix(end, "/") }):
		return "/**"
	case !all(func(end string) bool { return !strings.Contains(end, "/") && !strings.Contains(end, "**") }):
		return "**"
	case all(func(end string) bool { return strings.HasPrefix(end, ".") }):
		return ".*"
	}
	return "*"
}

// Stem returns what the patterns of one series have in common: what is before {step}. What is behind it depends on the
// files that there are. For a pattern with {name} Stem returns the pattern.
func Stem(pattern string) string {
	stem, _, _ := strings.Cut(pattern, stepPlace)
	return stem
}

// Join returns a pattern that matches all that two patterns of one Stem match.
func Join(a, b string) string {
	stem, endA, ok := strings.Cut(a, stepPlace)
	_, endB, _ := strings.Cut(b, stepPlace)
	if !ok || endA == endB {
		return a
	}
	return stem + stepPlace + tailOf([]string{endA, endB})
}

// series returns the sets in order, each with its missing parts.
func (c *collector) series() Series {
	s := c.Series
	for _, set := range c.sets {
		set.sort()
		s.Sets = append(s.Sets, *set)
	}
	sortSets(s.Sets, func(s *Set) *Set { return s }, c.named)
	bySize := map[int][]*Set{}
	for i := range s.Sets {
		size := c.job.size(&s.Sets[i])
		bySize[size] = append(bySize[size], &s.Sets[i])
	}
	for size, sets := range bySize {
		findMissing(sets, c.writers(size))
	}
	return s
}

// Sort sorts elements that refer to sets of the pattern in the order of the sets of a Series: the oldest first.
func Sort[T any](pattern string, list []T, set func(*T) *Set) { sortSets(list, set, isNamed(pattern)) }

// maxSkew is the most by which clocks of hosts differ that are not wrong.
const maxSkew = time.Minute

func isNamed(pattern string) bool { return strings.Contains(pattern, namePlace) }

// sortSets sorts by the times at which sets were written. Their numbers do not decide: a job that has gone back to an
// earlier step writes smaller numbers after greater ones. If times are equal, the numbers decide, or of named sets the
// last changes. Times are equal where more than half of the bytes are in files that the sets share, or that were copied
// with their times. If a set has a time in the future, a clock is wrong, and numbers decide.
func sortSets[T any](list []T, set func(*T) *Set, named bool) {
	type timed struct {
		element T
		name    string
		written time.Time
		ended   time.Time
	}
	all := make([]timed, len(list))
	for i := range list {
		s := set(&list[i])
		all[i] = timed{list[i], s.Name, s.Written(), s.Ended()}
	}
	compare := strings.Compare
	if !named {
		compare = func(a, b string) int { return compareNumbers(plain(a), plain(b)) }
	}
	future := time.Now().Add(maxSkew)
	wrong := !named && slices.ContainsFunc(all, func(s timed) bool { return s.written.After(future) })
	slices.SortStableFunc(all, func(a, b timed) int {
		byName, byTime, byEnd := compare(a.name, b.name), a.written.Compare(b.written), a.ended.Compare(b.ended)
		switch {
		case wrong:
			return cmp.Or(byName, byTime, byEnd)
		case named:
			return cmp.Or(byTime, byEnd, byName)
		}
		return cmp.Or(byTime, byName, byEnd)
	})
	for i := range all {
		list[i] = all[i].element
	}
}

// Greatest returns the index of the complete set with the greatest number; -1 if none is complete, or the pattern has names.
func Greatest(pattern string, sets []Set) int {
	greatest := -1
	for i := range sets {
		if sets[i].Complete() && !isNamed(pattern) && (greatest < 0 || compareNumbers(plain(sets[i].Name), plain(sets[greatest].Name)) > 0) {
			greatest = i
		}
	}
	return greatest
}

// Follows reports whether a job wrote a set of the pattern after another one, and went on from there: half of its bytes
// were written after the last change of the other one, and its number is greater.
func Follows(pattern string, s, other *Set) bool {
	return s.Written().After(other.Ended()) && (isNamed(pattern) || compareNumbers(plain(s.Name), plain(other.Name)) > 0)
}

// Overtaken returns a complete set that was written before the newest one, and has a greater number: the job has gone
// back to an earlier step since then, or a clock was wrong. ok is false if there is none.
func (s *Series) Overtaken() (set *Set, ok bool) {
	newest, _ := s.Newest()
	i := Greatest(s.Pattern, s.Sets)
	if i < 0 || plain(s.Sets[i].Name) == plain(newest.Name) {
		return nil, false
	}
	return &s.Sets[i], true
}

// oneWriter reports whether one rank writes for all. In a tree that rank may change: a file's path does not depend on
// its writer.
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

// writers returns the ranks that must have a part of each set, in a job of size ranks.
func (c *collector) writers(ranks int) []int {
	switch {
	case ranks == 1 && c.job.Tree:
		return nil
	case len(c.job.Writers) > 0:
		return c.job.Writers
	case c.oneWriter() && !c.numbered:
		return nil // its files are in each set
	}
	all := make([]int, ranks)
	for i := range all {
		all[i] = i
	}
	return all
}
