package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
)

// Lacking returns the numbers of the missing shards.
func (s *Set) Lacking() (numbers []int) {
	for n := range s.Code.shards() {
		if s.shard(n) == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// Spare returns how many more shards may be lost; negative if some files are unreadable.
func (s *Set) Spare() int { return s.Code.Parity - len(s.Lacking()) }

// shard returns the part with that shard; nil if it is missing.
func (s *Set) shard(number int) *part {
	for i := range s.present {
		if s.present[i].set.Shard == number {
			return &s.present[i]
		}
	}
	return nil
}

// putShards is Put of a set that is cut into shards, each in another failure domain.
func (c *Copies) putShards(ctx context.Context, s *Set, src Source, o Options) (*Set, error) {
	if len(s.Files) == 0 {
		return nil, fmt.Errorf("checkpoint %s: %w: no files", s.Name, ErrManifest)
	}
	ordered := *s
	ordered.Files = sorted(slices.Clone(s.Files)) // the order of files in all shards
	s = &ordered
	have, err := c.copiesOf(s)
	if err != nil {
		return nil, err
	}
	var targets []int
	if have != nil {
		targets = have.Parts // keep the division of the existing shards
	} else if targets, err = c.spread(); err != nil {
		return nil, err
	}
	if err := c.removeStalePartials(s); err != nil {
		return nil, err
	}
	for {
		done, err := c.cut(ctx, s, targets, src, o)
		switch {
		case err == nil && !done.Protected():
			return nil, fmt.Errorf("%w: shards %v are missing", ErrPartAway, done.Lacking())
		case err == nil:
			return done, c.removeOthers(done)
		case !errors.Is(err, syscall.ENOSPC):
			return nil, err
		}
		if err := c.makeSpace(targets, s, err); err != nil {
			return nil, errors.Join(err, c.removePartials(targets))
		}
	}
}

// spread returns the targets for the shards of a new set, each in a domain of its own: in each domain the target with
// the fewest sets.
func (c *Copies) spread() (targets []int, err error) {
	sets, err := c.Sets()
	if err != nil && !errors.Is(err, ErrManifest) {
		return nil, err
	}
	load := make([]int, len(c.areas))
	for i := range sets {
		for _, p := range sets[i].present {
			load[p.target]++
		}
	}
	order := make([]int, len(c.areas))
	for t, area := range c.areas {
		if order[t] = t; area == nil {
			load[t] = 1 << 30 // use it only if there are not enough others
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(load[a], load[b]) })
	there, taken := 0, map[string]bool{}
	for _, t := range order {
		if taken[c.domains[t]] || len(targets) == c.code.shards() {
			continue
		}
		taken[c.domains[t]], targets = true, append(targets, t)
		if c.areas[t] != nil {
			there++
		}
	}
	if len(targets) < c.code.shards() || there < c.code.Data {
		return nil, fmt.Errorf("%w: %s needs %d, and %d can be used", ErrFewDomains, c.code, c.code.shards(), there)
	}
	return targets, nil
}

// cut writes the missing shards of a set to those of its targets that can be used, and returns the resulting parts.
func (c *Copies) cut(ctx context.Context, s *Set, targets []int, src Source, o Options) (*Set, error) {
	have, err := c.copiesOf(s)
	if err != nil {
		return nil, err
	}
	cut := &cutting{Code: c.code, set: s, parts: make([]*partial, c.code.shards()), o: &o}
	defer cut.close()
	for n, t := range targets {
		if c.area(t) == nil || have != nil && have.shard(n) != nil {
			continue
		}
		if cut.parts[n], err = c.areas[t].beginShard(s.shardOf(c.code, n, targets), &o); err != nil {
			return nil, fmt.Errorf("%s: %w", c.areas[t].dir, err)
		}
	}
	if err := cut.write(ctx, src, have); err != nil {
		if errors.Is(err, ErrChanged) || errors.Is(err, ErrDamaged) {
			err = errors.Join(err, c.removePartials(targets))
		}
		return nil, err
	}
	for n, p := range cut.parts {
		if p == nil {
			continue
		}
		put, err := c.areas[targets[n]].commit(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.areas[targets[n]].dir, err)
		}
		if have == nil {
			w := put.whole()
			have = &w
		}
		have.addPart(part{targets[n], c.areas[targets[n]], put})
	}
	return have, nil
}

// area returns the area of a target; nil if there is none, or no such target.
func (c *Copies) area(target int) *Level {
	if target < 0 || target >= len(c.areas) {
		return nil
	}
	return c.areas[target]
}

func (l *Level) beginShard(s *Set, o *Options) (*partial, error) {
	if err := s.check(false); err != nil {
		return nil, err
	}
	return l.begin(s, o)
}

// write writes the shards under temporary names. have are the existing shards, or nil.
func (c *cutting) write(ctx context.Context, src Source, have *Set) error {
	if !slices.ContainsFunc(c.parts, func(p *partial) bool { return p != nil }) {
		return nil
	}
	if err := c.copy(ctx, src); err != nil {
		return err
	}
	if err := unchangedSet(src, c.set); err != nil {
		return err
	}
	for _, p := range c.parts {
		if p == nil {
			continue
		}
		if err := p.seal(ctx); err != nil {
			return err
		}
		if have == nil {
			w := p.set.whole()
			have = &w
		}
		if err := p.agrees(have); err != nil {
			return err
		}
	}
	return nil
}

// agrees checks that new shards are computed from the same content as existing ones. Otherwise they could not be
// combined.
func (p *partial) agrees(others *Set) error {
	for i := range p.set.Files {
		if f := &p.set.Files[i]; !slices.Equal(f.Whole.Sums, others.Files[i].Sums) {
			return fmt.Errorf("%s: %w: the file in the store differs from its shards", p.set.In(f), ErrDamaged)
		}
	}
	return nil
}

func (c *cutting) close() {
	for _, p := range c.parts {
		if p != nil {
			p.close()
		}
	}
}

// removePartials removes incomplete sets on some targets.
func (c *Copies) removePartials(targets []int) (err error) {
	for _, t := range targets {
		if area := c.area(t); area != nil {
			err = errors.Join(err, area.removePartials(""))
		}
	}
	return err
}

// AsCopied returns a reader of the copy or shard that a target has of a file, computed from a reader of the whole
// file.
func (s *Set) AsCopied(target, file int, read func(b []byte, off int64) error) func(b []byte, off int64) error {
	if s.Code == (Code{}) {
		return read
	}
	at := slices.IndexFunc(s.present, func(p part) bool { return p.target == target })
	return func(b []byte, off int64) error {
		c, err := newCoder(s.Code)
		if err != nil {
			return err
		}
		c.size = s.Files[file].Size
		if at < 0 || off < 0 || off+int64(len(b)) > c.shardSize(c.size) {
			return fs.ErrNotExist
		}
		number := s.present[at].set.Shard
		for len(b) > 0 {
			n := min(int64(len(b)), c.Unit-off%c.Unit)
			rows, err := c.decode(number, number+1, off, n, c.ofFile(read))
			if err != nil {
				return err
			}
			copy(b, rows[0])
			b, off = b[n:], off+n
		}
		return nil
	}
}
