package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"nvmecr/checkpoint"
	"nvmecr/internal/crc64"
)

// ErrPartAway means that a target with a part of a set has a copy area that cannot be used now.
var ErrPartAway = errors.New("a target that has a part of its copies cannot be used")

// ErrFewDomains means that a set has more shards than there are failure domains with a copy area.
var ErrFewDomains = errors.New("too few failure domains with a copy area")

// ErrOneDomain means that all writable copy areas are in one failure domain.
var ErrOneDomain = errors.New("no copy area in another failure domain")

// Copies are the copy areas of the targets of a store. A set is stored in parts. A part is a set of its own in one
// area; its manifest lists the files of the other parts, and their targets.
//
// A file depends on the targets of its data and of its name. Its copy is in a failure domain on which the file does not
// depend. If there is no such domain, it has a copy in each of two. So either the file or a copy survives the loss of
// any one domain.
//
// With a [Code] each part has a shard of every file instead, in a domain of its own.
type Copies struct {
	areas   []*Level // by target; nil if it has no area, or cannot be reached
	domains []string // by target
	code    Code     // for new sets
}

// NewCopies returns the Copies of the areas of targets, which are in the given failure domains. The area of a missing
// target is nil. The code is for new sets; existing sets may have others.
func NewCopies(areas []*Level, domains []string, code Code) *Copies {
	return &Copies{areas, domains, code}
}

// A part is the part of a set in one area.
type part struct {
	target int
	level  *Level
	set    *Set
}

// Protected reports whether all parts of a set of copies exist.
func (s *Set) Protected() bool { return s.PartsPresent() == len(s.Parts) }

// PartsPresent returns how many parts of a set of copies exist, of len(s.Parts).
func (s *Set) PartsPresent() int { return len(s.present) }

// holds reports whether there is a copy of a file of a set of copies, or enough shards of it.
func (s *Set) holds(file int) bool { return len(s.at[file]) >= max(s.Code.Data, 1) }

// Sets returns the sets of which any part exists, with all of their files; some of the files may have no copy any more.
// For errors see Level.Sets.
func (c *Copies) Sets() (sets []Set, err error) {
	for t, area := range c.areas {
		if area == nil {
			continue
		}
		found, e := area.Sets()
		err = errors.Join(err, e)
		for i := range found {
			p := part{t, area, &found[i]}
			at := slices.IndexFunc(sets, func(s Set) bool { return s.hasPart(p.set) })
			if at < 0 {
				at, sets = len(sets), append(sets, p.set.whole())
			}
			sets[at].addPart(p)
		}
	}
	return sets, err
}

// whole returns the set to which a part belongs, without any part.
func (s *Set) whole() Set {
	w := *s
	w.Dir, w.Rest, w.present = path.Join("copies", label(s)), nil, nil
	w.Shard, w.Files = 0, sorted(slices.Concat(s.Files, s.Rest))
	for i := range w.Files {
		f := &w.Files[i]
		f.Size, f.Sums, f.Whole = f.whole().Size, f.whole().Sums, nil
	}
	w.at = make([][]int, len(w.Files))
	return w
}

// sorted sorts files, and returns them.
func sorted(files []File) []File {
	slices.SortFunc(files, func(a, b File) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Path, b.Path)) })
	return files
}

// hasPart reports whether a part belongs to the set: it is of the same checkpoint, divided into the same parts.
func (s *Set) hasPart(p *Set) bool {
	if s.Code != (Code{}) && !s.sameFiles(p) { // shards of different contents cannot be combined
		return false
	}
	return s.sameAs(p) && s.Code == p.Code && slices.Equal(s.Parts, p.Parts) && s.Division == p.Division
}

func (s *Set) addPart(p part) {
	index := make(map[string]int, len(s.Files))
	for i := range s.Files {
		index[s.In(&s.Files[i])] = i
	}
	for _, f := range p.set.Files {
		if i, ok := index[s.In(&f)]; ok {
			s.at[i] = append(s.at[i], len(s.present))
		}
	}
	s.present = append(s.present, p)
	if p.set.Drained.Before(s.Drained) {
		s.Drained = p.set.Drained
	}
}

// Put copies a set, and returns the resulting set. depends returns the targets on which a file depends; it is ignored
// for shards. If there is no space older sets are removed, except the newest of each series. For errors see Level.Put;
// ErrOneDomain, ErrFewDomains, ErrPartAway, ENOSPC.
func (c *Copies) Put(ctx context.Context, s *Set, src Source, depends func(*File) []int, o Options) (*Set, error) {
	if c.code != (Code{}) {
		return c.putShards(ctx, s, src, o)
	}
	have, err := c.copiesOf(s)
	if err != nil {
		return nil, err
	}
	among := c
	if have != nil {
		if among, err = c.within(have.Parts); err != nil {
			return nil, err
		}
	}
	parts, err := among.divide(s, depends)
	if err == nil {
		err = c.removeStalePartials(s)
	}
	if err != nil {
		return nil, err
	}
	done := parts[0].set.whole()
	for _, p := range parts {
		put, err := c.putPart(ctx, p, src, o)
		if err == nil {
			p.set, done.Drained = put, put.Drained
			done.addPart(p)
			continue
		}
		err = fmt.Errorf("%s: %w", p.level.dir, err)
		if errors.Is(err, syscall.ENOSPC) { // a partial set would use space that the next set needs
			err = errors.Join(err, p.level.removePartials(""))
			if have == nil {
				err = errors.Join(err, c.Remove(&done))
			}
		}
		return nil, err
	}
	return &done, c.removeOthers(&done)
}

// copiesOf returns the existing copies of a set with the same code; nil if there are none.
func (c *Copies) copiesOf(s *Set) (*Set, error) {
	sets, err := c.Sets()
	if errors.Is(err, ErrManifest) {
		err = nil // errors about other sets
	}
	if i := slices.IndexFunc(sets, func(have Set) bool {
		return have.sameAs(s) && have.Code == c.code && (c.code == Code{} || have.sameFiles(s))
	}); i >= 0 {
		return &sets[i], err
	}
	return nil, err
}

// within returns the Copies of some targets. An existing set keeps its division: its parts may be the only copies of
// data of a lost target, and parts of different divisions do not form a set.
func (c *Copies) within(targets []int) (*Copies, error) {
	areas := make([]*Level, len(c.areas))
	for _, t := range targets {
		if c.area(t) == nil {
			return nil, fmt.Errorf("%w: target %d", ErrPartAway, t)
		}
		areas[t] = c.areas[t]
	}
	return &Copies{areas, c.domains, c.code}, nil
}

// removeOthers removes copies of a set with another division or code, now that the new ones are complete.
func (c *Copies) removeOthers(done *Set) error {
	sets, err := c.Sets()
	if errors.Is(err, ErrManifest) {
		err = nil // errors about other sets
	}
	for i := range sets {
		if s := &sets[i]; s.sameAs(done) && !s.hasPart(done) {
			err = errors.Join(err, c.Remove(s))
		}
	}
	return err
}

// divide returns the parts of a set that is to be copied.
func (c *Copies) divide(s *Set, depends func(*File) []int) (parts []part, err error) {
	homes, used := make([][]int, len(s.Files)), map[int]bool{}
	for i := range s.Files {
		if homes[i], err = c.homes(depends(&s.Files[i])); err != nil {
			return nil, err
		}
		for _, t := range homes[i] {
			used[t] = true
		}
	}
	targets, division := slices.Sorted(maps.Keys(used)), divisionOf(s, homes)
	for _, t := range targets {
		p := *s
		p.Files, p.Rest, p.Parts, p.Division = nil, nil, targets, division
		for i, f := range s.Files {
			if slices.Contains(homes[i], t) {
				p.Files = append(p.Files, f)
			} else {
				p.Rest = append(p.Rest, f)
			}
		}
		parts = append(parts, part{t, c.areas[t], &p})
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("checkpoint %s: %w: no files", s.Name, ErrManifest)
	}
	return parts, nil
}

// divisionOf returns the checksum of a division. After a restart a file's data may be on another target, so that its
// copy belongs elsewhere. A file may be missing from the parts of two different divisions.
func divisionOf(s *Set, homes [][]int) Sum {
	var text []byte
	for i := range s.Files {
		text = fmt.Appendf(text, "%q %v\n", s.In(&s.Files[i]), homes[i])
	}
	return Sum(crc64.Checksum(text))
}

// homes returns the targets that get a copy of a file which depends on other targets.
func (c *Copies) homes(depends []int) (to []int, err error) {
	doomed := map[string]bool{}
	next := 0
	for _, t := range depends {
		doomed[c.domains[t]], next = true, t+1
	}
	var order []int // first the targets that follow the file's own one
	for i := range c.areas {
		if t := (next + i) % len(c.areas); c.areas[t] != nil {
			order = append(order, t)
		}
	}
	for _, t := range order {
		if !doomed[c.domains[t]] {
			return []int{t}, nil
		}
	}
	for _, t := range order {
		if len(to) == 0 || c.domains[t] != c.domains[to[0]] {
			to = append(to, t)
		}
		if len(to) == 2 {
			return to, nil
		}
	}
	return nil, ErrOneDomain
}

// putPart copies a part, and frees space for it if necessary.
func (c *Copies) putPart(ctx context.Context, p part, src Source, o Options) (*Set, error) {
	for {
		put, err := p.level.Put(ctx, p.set, src, o)
		switch {
		case err == nil && put.hasPart(p.set):
			return put, nil
		case err == nil: // the set exists with another division
			if err := p.level.relabel(put, p.set, o); err != nil {
				return nil, err
			}
			continue
		case !errors.Is(err, syscall.ENOSPC):
			return nil, err
		}
		if err := c.makeSpace([]int{p.target}, p.set, err); err != nil {
			return nil, err
		}
	}
}

// makeSpace removes the oldest set that has a part on one of the targets and may be removed, because the next set got ENOSPC.
func (c *Copies) makeSpace(targets []int, next *Set, full error) error {
	old, err := c.oldest(targets, next)
	if err != nil {
		return errors.Join(full, err)
	}
	if old == nil {
		return fmt.Errorf("the copy area has no space for the next checkpoint in addition to the newest: %w", full)
	}
	if err := c.Remove(old); err != nil {
		return errors.Join(full, err)
	}
	return nil
}

// relabel changes the list of other parts, and the pattern, in the manifest of a part. The data of the part stays, since it may be the
// only copy.
func (l *Level) relabel(have, want *Set, o Options) error {
	root, err := l.root.Sub(filepath.Base(have.Dir))
	if err != nil {
		return err
	}
	s := *have
	s.Parts, s.Rest, s.Division = want.Parts, want.Rest, want.Division
	s.Pattern, s.Name = want.Pattern, want.Name // the existing part may have been found by another pattern
	p := &partial{root: root, set: &s, o: &o}
	return errors.Join(p.writeManifest(), root.Close())
}

// oldest returns the oldest set on some targets that may be removed for the next one; nil if there is none. Of each
// series the newest protected set stays, or, if none is protected, the newest set.
func (c *Copies) oldest(targets []int, next *Set) (old *Set, err error) {
	sets, err := c.Sets()
	if errors.Is(err, ErrManifest) {
		err = nil // errors about other sets
	}
	sets = slices.DeleteFunc(sets, func(s Set) bool { return s.sameAs(next) })
	for _, list := range bySeries(sets) {
		stays := 0
		for i := range list {
			if list[i].Protected() || !list[stays].Protected() {
				stays = i
			}
		}
		i := 0
		for i < len(list) && (i == stays || !list[i].isOn(targets)) {
			i++
		}
		if i < len(list) && (old == nil || list[i].written().Before(old.written())) {
			old = &list[i]
		}
	}
	return old, err
}

// isOn reports whether the set has a part on one of the targets.
func (s *Set) isOn(targets []int) bool {
	return slices.ContainsFunc(s.present, func(p part) bool { return slices.Contains(targets, p.target) })
}

// sameAs reports whether two sets, or parts of sets, are of one checkpoint. The patterns of the sets may differ behind the step.
func (s *Set) sameAs(o *Set) bool {
	return checkpoint.Stem(s.Pattern) == checkpoint.Stem(o.Pattern) && s.Name == o.Name && s.Ended.Equal(o.Ended) && len(s.Files)+len(s.Rest) == len(o.Files)+len(o.Rest)
}

// removeStalePartials removes incomplete sets, except that of the next set, which will be continued.
func (c *Copies) removeStalePartials(next *Set) error {
	for _, area := range c.areas {
		if area != nil {
			if err := area.removePartials(label(next)); err != nil {
				return err
			}
		}
	}
	return nil
}

// removePartials removes incomplete sets, except one. No other process writes to the level.
func (l *Level) removePartials(but string) error {
	d, err := l.root.Sub(partialDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := d.List()
	for _, name := range names {
		if name != but {
			err = errors.Join(err, d.RemoveAll(name))
		}
	}
	return errors.Join(err, d.Close())
}

// RemoveDamaged removes the parts whose manifests are damaged, and returns these parts. Such a part can never be read again and takes space.
func (c *Copies) RemoveDamaged() (removed DamagedSets, err error) {
	for _, area := range c.areas {
		if area == nil {
			continue
		}
		_, e := area.Sets()
		var damaged DamagedSets
		if !errors.As(e, &damaged) {
			err = errors.Join(err, e)
		}
		for _, d := range damaged {
			if !d.useless() {
				continue
			}
			if e := area.remove(filepath.Base(d.Dir)); e != nil {
				err = errors.Join(err, e)
			} else {
				removed = append(removed, d)
			}
		}
	}
	return removed, err
}

// Get is Level.Get. If one copy of the file cannot be read it reads another one.
func (c *Copies) Get(ctx context.Context, s *Set, file int, w io.WriterAt, o Options) error {
	if s.Code != (Code{}) {
		return s.joined(file, func(j *joined) error { return j.get(ctx, w, o) })
	}
	err := fmt.Errorf("%s: no copy is left: %w", s.Files[file].Path, fs.ErrNotExist)
	for n, at := range s.at[file] {
		p := s.present[at]
		e := p.level.Get(ctx, p.set, p.fileOf(s, &s.Files[file]), w, o)
		if e == nil {
			return nil
		}
		if n == 0 {
			err = e
		} else {
			err = errors.Join(err, e)
		}
	}
	return err
}

// fileOf returns the index of a file of the set in a part.
func (p part) fileOf(s *Set, f *File) int {
	return slices.IndexFunc(p.set.Files, func(g File) bool { return s.In(&g) == s.In(f) })
}

// CopyAt returns the index of the set's file whose copy or shard has that path in the copy area of the target; -1 if
// there is none.
func (s *Set) CopyAt(target int, name string) int {
	for _, p := range s.present {
		if in, ok := strings.CutPrefix(name, path.Join("/", filepath.Base(p.set.Dir))+"/"); ok && p.target == target {
			return slices.IndexFunc(s.Files, func(f File) bool { return s.In(&f) == in })
		}
	}
	return -1
}

// ReadAt reads a file at off from the first readable copy. The area verifies the data by its own checksums.
func (c *Copies) ReadAt(s *Set, file int, b []byte, off int64) error {
	if s.Code != (Code{}) {
		return s.joined(file, func(j *joined) error { return j.ReadAt(b, off) })
	}
	err := fmt.Errorf("%s: no copy is left: %w", s.Files[file].Path, fs.ErrNotExist)
	for n, at := range s.at[file] {
		p := s.present[at]
		e := p.level.readAt(path.Join(filepath.Base(p.set.Dir), s.In(&s.Files[file])), b, off)
		if e == nil {
			return nil
		}
		if n == 0 {
			err = nil
		}
		err = errors.Join(err, e)
	}
	return err
}

func (l *Level) readAt(name string, b []byte, off int64) error {
	f, err := l.root.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.ReadAt(b, off)
	return errors.Join(err, f.Close())
}

// Verify is Level.Verify, for all parts.
func (c *Copies) Verify(ctx context.Context, s *Set, o Options) (err error) {
	for _, p := range s.present {
		err = errors.Join(err, p.level.Verify(ctx, p.set, o))
	}
	return err
}

// Remove removes a set.
func (c *Copies) Remove(s *Set) (err error) {
	for _, p := range s.present {
		err = errors.Join(err, p.level.Remove(p.set))
	}
	return err
}
