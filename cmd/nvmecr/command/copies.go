package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// copyAreas are the copy areas of the targets of a store, mounted.
type copyAreas struct {
	*drain.Copies
	mounted []*store.Partition
}

// openCopies mounts the copy areas. A target whose area was never written is left out. Errors of other targets are passed to tell.
// A target without an area is such an error, too, unless the areas are only read.
func openCopies(ctx context.Context, cfg *config.Config, readOnly bool, tell func(error)) *copyAreas {
	c := &copyAreas{}
	areas := make([]*drain.Level, len(cfg.Targets))
	parts, errs := make([]*store.Partition, len(cfg.Targets)), make([]error, len(cfg.Targets))
	var opening sync.WaitGroup // lost targets take their time-out; wait for all at once
	for t := range cfg.Targets {
		opening.Go(func() { parts[t], errs[t] = store.OpenCopies(ctx, cfg, t, store.Options{ReadOnly: readOnly}) })
	}
	opening.Wait()
	for t, p := range parts {
		switch err := errs[t]; {
		case errors.Is(err, parttable.ErrNoTable), errors.Is(err, store.ErrNoCopies) && readOnly, errors.Is(err, microfs.ErrUnformatted):
		case err != nil && ctx.Err() != nil: // interrupted
		case err != nil:
			tell(fmt.Errorf("copies: %w", err))
		default:
			c.mounted = append(c.mounted, p)
			areas[t] = drain.OpenArea(p.FS, fmt.Sprintf("copies on target %s", p.Target))
		}
	}
	c.Copies = drain.NewCopies(areas, store.Domains(cfg.Targets), erasureCode(cfg))
	return c
}

// erasureCode returns the erasure code of new copies; the zero code for whole copies.
func erasureCode(cfg *config.Config) drain.Code {
	data, parity := cfg.Copies.Shards()
	if data == 0 {
		return drain.Code{}
	}
	return drain.NewCode(data, parity)
}

// checked reports whether all areas have checksums of their data.
func (c *copyAreas) checked() bool {
	return !slices.ContainsFunc(c.mounted, func(p *store.Partition) bool { return !p.FS.DataCRC() })
}

func (c *copyAreas) close() (err error) {
	for _, p := range c.mounted {
		err = errors.Join(err, p.Close())
	}
	return err
}

// checkCopies refuses copies where there is no copy area.
func checkCopies(cfg *config.Config) error {
	private := func(t nvmf.TransportID) bool { return t.Transport == nvmf.Mem || t.Transport == nvmf.PCIe }
	switch i := slices.IndexFunc(cfg.Targets, private); {
	case cfg.Copies == config.CopiesNone && !cfg.CopiesSync:
		return nil
	case i >= 0:
		return fmt.Errorf("--copies: target %s can be opened by one process only, and another process makes the copies: serve it with nvmecr target and name that target", cfg.Targets[i])
	case len(cfg.Targets) < 2:
		return errors.New("--copies: copies need a second target: name several with --target, or leave --copies out")
	case cfg.CopiesSync && cfg.Copies != config.CopiesNone && cfg.Copies != config.CopiesPartner:
		return fmt.Errorf("--copies-sync: mirroring the targets can be combined with --copies partner only, not with --copies %s", cfg.Copies)
	case cfg.CopiesSync:
		cfg.Copies = config.CopiesNone // mirrors replace copies
		return store.CheckMirror(cfg.Targets)
	}
	return checkShards(cfg)
}

// checkShards refuses to cut checkpoints into more shards than there are failure domains.
func checkShards(cfg *config.Config) error {
	data, parity := cfg.Copies.Shards()
	list := store.Domains(cfg.Targets)
	slices.Sort(list)
	n := len(slices.Compact(list))
	if data+parity <= n {
		return nil
	}
	least := min(parity, n-1)
	return fmt.Errorf("--copies %s: %d shards need as many failure domains, and the targets are in %d: name targets at more addresses, or take --copies rs:%d+%d",
		cfg.Copies, data+parity, n, n-least, least)
}

// copiedSets returns the sets of which there are copies. Damaged sets and unusable copy areas are reported as
// warnings, since the store and the other copies remain usable.
func (o *levelReader) copiedSets(ctx context.Context) []drain.Set {
	if o.cfg.Copies == config.CopiesNone && !o.areas {
		return nil
	}
	o.copies = openCopies(ctx, o.cfg, true, o.warn)
	sets, err := o.copies.Sets()
	if err != nil {
		o.warn(err)
	}
	return sets
}

// dependencies returns the targets whose loss makes the file unreadable.
func (o *levelReader) dependencies(f *drain.File) (targets []int) {
	switch _, alone := o.targetOf[f.Rank]; {
	case alone && f.Rank >= 0:
		targets = []int{o.targetOf[f.Rank]}
	case o.tree: // written by several ranks, or by an unknown one
		for _, t := range o.targetOf {
			targets = append(targets, t)
		}
	}
	if o.tree || len(targets) == 0 {
		targets = append(targets, 0) // target 0 has the index and the singleton partition
	}
	slices.Sort(targets)
	return slices.Compact(targets)
}

// copyToTargets copies checkpoints whose copies are missing or incomplete.
func (f *follower) copyToTargets(o *drainOptions, list []drain.Series, r round) error {
	protected := func(c *drain.Checkpoint) bool {
		return c.Copied != nil && c.Copied.Protected() || r == roundDue && f.tooLarge[c.Name].Equal(c.Ended())
	}
	var due []*drain.Series
	for i := range list {
		if f.candidate(&list[i], r, protected) != nil {
			due = append(due, &list[i])
		}
	}
	if len(due) == 0 {
		return nil
	}
	cfg, err := config.FromEnv(os.Getenv) // FromEnv also sets cfg.Run, which writers of copy areas need
	if err != nil {
		return err
	}
	var unusable error
	areas := openCopies(f.cmd.Context(), cfg, false, func(err error) {
		if !errors.Is(err, store.ErrNoCopies) {
			unusable = errors.Join(unusable, err)
		} else if !f.noAreas[err.Error()] { // other targets have the copies
			f.noAreas[err.Error()] = true
			fmt.Fprintln(f.cmd.ErrOrStderr(), cli.OneLine(err))
		}
	})
	removed, err := areas.RemoveDamaged()
	for _, d := range removed {
		fmt.Fprintln(f.cmd.ErrOrStderr(), cli.OneLine(fmt.Errorf("%w; the copies of this checkpoint there are removed", d)))
	}
	for _, s := range due {
		err = errors.Join(err, f.newestReadable(s, r, protected, func(c *drain.Checkpoint) error {
			put, err := f.copyOne(o, areas.Copies, s.Pattern, c, f.throttled(s, c, r, pace{count: 1}))
			if errors.Is(err, syscall.ENOSPC) {
				f.tooLarge[c.Name] = c.Ended()
			}
			if err != nil {
				return err
			}
			return f.retain(areas.Copies, s.Pattern, put)
		}))
	}
	return errors.Join(err, unusable, areas.close())
}

func (f *follower) copyOne(o *drainOptions, areas *drain.Copies, pattern string, c *drain.Checkpoint, how drain.Options) (*drain.Set, error) {
	src := newStoreSource(f.cmd.Context(), &o.reader)
	defer src.Close()
	src.readCopies(o.copies, c.Copied)
	s, err := o.newDrained(src, pattern, c)
	if err != nil {
		return nil, err
	}
	put, err := areas.Put(f.cmd.Context(), s, src, o.dependencies, how)
	if err != nil {
		return nil, err
	}
	if err := supersede(areas, put); err != nil {
		return nil, err
	}
	fmt.Fprintf(f.cmd.OutOrStdout(), "%s: %s of %s copied to other targets\n", printable(c.Name), count(len(s.Files), "file"), size(nvmf.Bytes(s.Size())))
	return put, nil
}

// A setLevel is a level that lists and removes sets.
type setLevel interface {
	Sets() ([]drain.Set, error)
	Remove(*drain.Set) error
}

// wholeSets returns the sets of a level that are not damaged. The function that listed the checkpoints has reported the damaged ones.
func wholeSets(level setLevel) ([]drain.Set, error) {
	sets, err := level.Sets()
	if errors.As(err, new(drain.DamagedSets)) {
		err = nil
	}
	return sets, err
}

// supersede removes older versions of a checkpoint that has been copied again. A version of another pattern is removed only if the new
// one has all of its files.
func supersede(level setLevel, put *drain.Set) error {
	sets, err := wholeSets(level)
	if err != nil {
		return err
	}
	for i := range sets {
		if s := &sets[i]; s.Name == put.Name && !s.Same(put) && (s.Pattern == put.Pattern || put.Covers(s)) {
			err = errors.Join(err, level.Remove(s))
		}
	}
	return err
}

// retain removes all but the newest o.keep checkpoints of a pattern from a level, and the one that was copied last, which is not the newest one if a
// clock was set back. A checkpoint that has lost parts of its copies does not count as kept, so that the newest whole one is never removed in its favor.
func (o *drainOptions) retain(level setLevel, pattern string, last *drain.Set) error {
	sets, err := wholeSets(level)
	if err != nil {
		return err
	}
	for _, s := range drain.Merge(nil, nil, nil, sets, pattern) {
		kept := 0
		for i := len(s.Checkpoints) - 1; i >= 0; i-- {
			switch set := s.Checkpoints[i].Drained; {
			case last != nil && set.Same(last):
				kept = min(kept+1, o.keep)
			case kept == o.keep:
				if err := level.Remove(set); err != nil {
					return err
				}
			case set.Protected():
				kept++
			}
		}
	}
	return nil
}

// requireAnyLevel returns a usage error if there are neither copies nor a second level.
func (o *levelReader) requireAnyLevel() error {
	if o.cfg.Copies != config.CopiesNone || o.cfg.CopiesSync {
		return nil
	}
	return o.requireLevel2()
}
