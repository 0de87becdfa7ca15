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
)

// ErrPartAway says that a target has a part of a set and its copy area cannot be used now.
var ErrPartAway = errors.New("a target that has a part of its copies cannot be used")

// ErrOneDomain says that all areas which can be written to fail together.
var ErrOneDomain = errors.New("no copy area in another failure domain")

// Copies are the copy areas of the targets of a store. A set is there in parts: the files that an area has of it are a set of
// their own there, which names the other files, and the targets that have these.
//
// A file depends on targets: those that have its bytes, and its name. Its copy is in a failure domain that it does not depend on, or where there is
// none there is one in each of two. So either the file or a copy is left, whichever domain is lost.
type Copies struct {
	areas   []*Level // by target; nil: it has none, or cannot be reached
	domains []string // of the targets
}

// NewCopies puts the areas of targets together, which are in failure domains. One that is not there is nil.
func NewCopies(areas []*Level, domains []string) *Copies { return &Copies{areas, domains} }

// A part is what one area has of a set.
type part struct {
	target int
	level  *Level
	set    *Set
}

// Protected reports whether all parts of a set of copies are there.
func (s *Set) Protected() bool { return s.PartsPresent() == len(s.Parts) }

// PartsPresent returns how many parts of a set of copies there are, of len(s.Parts).
func (s *Set) PartsPresent() int { return len(s.present) }

// holds says whether there is a copy of a file of a set of copies.
func (s *Set) holds(file int) bool { return len(s.at[file]) > 0 }

// Sets returns the sets of which there are parts, with all of their files: of some there may be no copy any more. For errors see Level.Sets.
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

// whole returns the set that a part is of, without any part.
func (s *Set) whole() Set {
	w := *s
	w.Dir, w.Rest, w.present = path.Join("copies", label(s)), nil, nil
	w.Files = slices.Concat(s.Files, s.Rest)
	slices.SortFunc(w.Files, func(a, b File) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Path, b.Path)) })
	w.at = make([][]int, len(w.Files))
	return w
}

// hasPart says whether a part is of the set: it is of the same checkpoint, cut into the same parts.
func (s *Set) hasPart(p *Set) bool {
	return s.sameAs(p) && slices.Equal(s.Parts, p.Parts) && len(s.Files)+len(s.Rest) == len(p.Files)+len(p.Rest)
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

// Put copies a set, and returns it as it is there. depends says for each file by which targets' loss it is lost. Where there is no space older sets go, but
// not the newest of each series. For errors see Level.Put; ErrOneDomain, ENOSPC.
func (c *Copies) Put(ctx context.Context, s *Set, src Source, depends func(*File) []int, o Options) (*Set, error) {
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
		if errors.Is(err, syscall.ENOSPC) { // it would be in the way of the next one
			err = errors.Join(err, p.level.removePartials(""))
			if have == nil {
				err = errors.Join(err, c.Remove(&done))
			}
		}
		return nil, err
	}
	return &done, c.removeOthers(&done)
}

// copiesOf returns what there is of copies of a set; nil if there is nothing.
func (c *Copies) copiesOf(s *Set) (*Set, error) {
	sets, err := c.Sets()
	if errors.Is(err, ErrManifest) {
		err = nil // of others
	}
	if i := slices.IndexFunc(sets, func(have Set) bool { return have.sameAs(s) }); i >= 0 {
		return &sets[i], err
	}
	return nil, err
}

// within returns the copies on some targets. A set stays cut as it is: its parts may be all that is left of what another target has lost, and a part counts
// only beside the others.
func (c *Copies) within(targets []int) (*Copies, error) {
	areas := make([]*Level, len(c.areas))
	for _, t := range targets {
		if t < 0 || t >= len(areas) || c.areas[t] == nil {
			return nil, fmt.Errorf("%w: target %d", ErrPartAway, t)
		}
		areas[t] = c.areas[t]
	}
	return &Copies{areas, c.domains}, nil
}

// removeOthers removes what there is of copies of a set that were cut otherwise, now that all of it is there.
func (c *Copies) removeOthers(done *Set) error {
	sets, err := c.Sets()
	if errors.Is(err, ErrManifest) {
		err = nil // of others
	}
	for i := range sets {
		if s := &sets[i]; s.sameAs(done) && !s.hasPart(done) {
			err = errors.Join(err, c.Remove(s))
		}
	}
	return err
}

// divide returns the parts that a set is to have.
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
	targets := slices.Sorted(maps.Keys(used))
	for _, t := range targets {
		p := *s
		p.Files, p.Rest, p.Parts = nil, nil, targets
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

// homes returns the targets that get a copy of a file which depends on others.
func (c *Copies) homes(depends []int) (to []int, err error) {
	doomed := map[string]bool{}
	next := 0
	for _, t := range depends {
		doomed[c.domains[t]], next = true, t+1
	}
	var order []int // the neighbours behind its own target first
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

// putPart copies a part, and makes space for it if need be.
func (c *Copies) putPart(ctx context.Context, p part, src Source, o Options) (*Set, error) {
	for {
		put, err := p.level.Put(ctx, p.set, src, o)
		switch {
		case err == nil && put.hasPart(p.set):
			return put, nil
		case err == nil: // it was cut into other parts
			if err := p.level.relabel(put, p.set, o); err != nil {
				return nil, err
			}
			continue
		case !errors.Is(err, syscall.ENOSPC):
			return nil, err
		}
		old, e := c.oldest(p.target, p.set)
		if e != nil {
			return nil, errors.Join(err, e)
		}
		if old == nil {
			return nil, fmt.Errorf("the copy area has room for one checkpoint and not for the next beside it: %w", err)
		}
		if e := c.Remove(old); e != nil {
			return nil, errors.Join(err, e)
		}
	}
}

// relabel has a part say which others there are. Its bytes stay: they may be the only ones.
func (l *Level) relabel(have, want *Set, o Options) error {
	root, err := l.root.Sub(filepath.Base(have.Dir))
	if err != nil {
		return err
	}
	s := *have
	s.Parts, s.Rest = want.Parts, want.Rest
	p := &partial{root: root, set: &s, o: &o}
	return errors.Join(p.writeManifest(), root.Close())
}

// oldest returns the oldest set with a part on a target that may go for the next one; nil if there is none. Of each series the newest that is protected stays, or
// where none is the newest.
func (c *Copies) oldest(target int, next *Set) (old *Set, err error) {
	sets, err := c.Sets()
	if errors.Is(err, ErrManifest) {
		err = nil // of others
	}
	sets = slices.DeleteFunc(sets, func(s Set) bool { return s.sameAs(next) })
	slices.SortFunc(sets, func(a, b Set) int { return a.Ended.Compare(b.Ended) })
	stays := map[string]*Set{}
	for i := range sets {
		s := &sets[i]
		if have := stays[s.Pattern]; have == nil || s.Protected() || !have.Protected() {
			stays[s.Pattern] = s
		}
	}
	for i := range sets {
		s := &sets[i]
		if s != stays[s.Pattern] && slices.ContainsFunc(s.present, func(p part) bool { return p.target == target }) {
			return s, err
		}
	}
	return nil, err
}

// sameAs says whether two sets, or parts of sets, are of one checkpoint.
func (s *Set) sameAs(o *Set) bool {
	return s.Pattern == o.Pattern && s.Name == o.Name && s.Ended.Equal(o.Ended)
}

// removeStalePartials removes what is half written of other sets than the next one, which goes on there.
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

// removePartials removes sets that are half written, but one. Nobody else writes to the level.
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

// Get is Level.Get. Where one copy of the file cannot be read another one is, if there is one.
func (c *Copies) Get(ctx context.Context, s *Set, file int, w io.WriterAt, o Options) error {
	err := fmt.Errorf("%s: no copy is left: %w", s.Files[file].Path, fs.ErrNotExist)
	for n, at := range s.at[file] {
		p := s.present[at]
		i := slices.IndexFunc(p.set.Files, func(f File) bool { return s.In(&f) == s.In(&s.Files[file]) })
		e := p.level.Get(ctx, p.set, i, w, o)
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

// CopyAt returns which file of the set a file of the copy area of a target is a copy of, by its path there; -1: of none.
func (s *Set) CopyAt(target int, name string) int {
	for _, p := range s.present {
		if in, ok := strings.CutPrefix(name, path.Join("/", filepath.Base(p.set.Dir))+"/"); ok && p.target == target {
			return slices.IndexFunc(s.Files, func(f File) bool { return s.In(&f) == in })
		}
	}
	return -1
}

// ReadAt fills b with what the first copy that can be read has of a file from off on. It is what was copied, as far as the area itself can tell.
func (c *Copies) ReadAt(s *Set, file int, b []byte, off int64) error {
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
