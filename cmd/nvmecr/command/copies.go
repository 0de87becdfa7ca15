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

// openCopies mounts the areas. A target on which nothing was written yet is left out; one that cannot be used is told of, too, and, to whom it is to be written, one that has no area.
func openCopies(ctx context.Context, cfg *config.Config, readOnly bool, tell func(error)) *copyAreas {
	c := &copyAreas{}
	areas := make([]*drain.Level, len(cfg.Targets))
	parts, errs := make([]*store.Partition, len(cfg.Targets)), make([]error, len(cfg.Targets))
	var opening sync.WaitGroup // each that is lost is waited for
	for t := range cfg.Targets {
		opening.Go(func() { parts[t], errs[t] = store.OpenCopies(ctx, cfg, t, store.Options{ReadOnly: readOnly}) })
	}
	opening.Wait()
	for t, p := range parts {
		switch err := errs[t]; {
		case errors.Is(err, parttable.ErrNoTable), errors.Is(err, store.ErrNoCopies) && readOnly, errors.Is(err, microfs.ErrUnformatted):
		case err != nil && ctx.Err() != nil: // the caller was told to end
		case err != nil:
			tell(fmt.Errorf("copies: %w", err))
		default:
			c.mounted = append(c.mounted, p)
			areas[t] = drain.OpenArea(p.FS, fmt.Sprintf("copies on target %s", p.Target))
		}
	}
	c.Copies = drain.NewCopies(areas, store.Domains(cfg.Targets), codeOf(cfg))
	return c
}

// codeOf is how checkpoints are cut that are copied now.
func codeOf(cfg *config.Config) drain.Code {
	data, parity := cfg.Copies.Shards()
	if data == 0 {
		return drain.Code{}
	}
	return drain.NewCode(data, parity)
}

// checked reports whether all areas have checksums of what is in them.
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
		return fmt.Errorf("--copies-sync: targets are mirrored, which goes with --copies partner, not with --copies %s", cfg.Copies)
	case cfg.CopiesSync:
		cfg.Copies = config.CopiesNone // the mirrors are in the place of copies
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

// copied returns the sets of which there are copies. Damaged ones are told of, and areas that cannot be used: the others, and the store, are there all the same.
func (o *levelReader) copied(ctx context.Context) []drain.Set {
	if o.cfg.Copies == config.CopiesNone && !o.areas {
		return nil
	}
	o.copies = openCopies(ctx, o.cfg, true, o.say)
	sets, err := o.copies.Sets()
	if err != nil {
		o.say(err)
	}
	return sets
}

// depends returns the targets with whose loss the file is lost.
func (o *levelReader) depends(f *drain.File) (targets []int) {
	switch _, alone := o.on[f.Rank]; {
	case alone && f.Rank >= 0:
		targets = []int{o.on[f.Rank]}
	case o.tree: // of several ranks, or of an unknown one
		for _, t := range o.on {
			targets = append(targets, t)
		}
	}
	if o.tree || len(targets) == 0 {
		targets = append(targets, 0) // the first one has the index, and the singleton partition
	}
	slices.Sort(targets)
	return slices.Compact(targets)
}

// protect makes copies of checkpoints that have none yet, or not all.
func (f *follower) protect(o *drainOptions, list []drain.Series, r round) error {
	protected := func(c *drain.Checkpoint) bool {
		return c.Copied != nil && c.Copied.Protected() || r == now && f.tooLarge[c.Name].Equal(c.Ended())
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
	cfg, err := config.FromEnv(os.Getenv) // it has the run, by which areas are written to
	if err != nil {
		return err
	}
	var unusable error
	areas := openCopies(f.cmd.Context(), cfg, false, func(err error) {
		if !errors.Is(err, store.ErrNoCopies) {
			unusable = errors.Join(unusable, err)
		} else if !f.noAreas[err.Error()] { // the others have the copies
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
			err := f.copyOne(o, areas.Copies, s.Pattern, c, f.gently(s, c, r, pace{count: 1}))
			if errors.Is(err, syscall.ENOSPC) {
				f.tooLarge[c.Name] = c.Ended()
			}
			if err != nil || o.keep == 0 {
				return err
			}
			return o.retain(areas.Copies, s.Pattern)
		}))
	}
	return errors.Join(err, unusable, areas.close())
}

func (f *follower) copyOne(o *drainOptions, areas *drain.Copies, pattern string, c *drain.Checkpoint, how drain.Options) error {
	src := newStoreSource(f.cmd.Context(), &o.reader)
	defer src.Close()
	src.readCopies(o.copies, c.Copied)
	s, err := o.newDrained(src, pattern, c)
	if err != nil {
		return err
	}
	put, err := areas.Put(f.cmd.Context(), s, src, o.depends, how)
	if err != nil {
		return err
	}
	if err := supersede(areas, put); err != nil {
		return err
	}
	fmt.Fprintf(f.cmd.OutOrStdout(), "%s: %s of %s copied to other targets\n", printable(c.Name), count(len(s.Files), "file"), size(nvmf.Bytes(s.Size())))
	return nil
}

// A setKeeper is a level, as far as it has sets and can remove them.
type setKeeper interface {
	Sets() ([]drain.Set, error)
	Remove(*drain.Set) error
}

// wholeSets returns the sets of a level. That others are damaged has been told by whoever has listed the checkpoints.
func wholeSets(level setKeeper) ([]drain.Set, error) {
	sets, err := level.Sets()
	if errors.As(err, new(drain.DamagedSets)) {
		err = nil
	}
	return sets, err
}

// supersede removes what a level had of a checkpoint that has been written again since. If that was found by another pattern, the new one has to have all of its files.
func supersede(level setKeeper, put *drain.Set) error {
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

// retain removes old checkpoints of a pattern from a level. What has lost parts of its copies does not count as one of those that are kept: the newest whole one
// is never removed for it.
func (o *drainOptions) retain(level setKeeper, pattern string) error {
	sets, err := wholeSets(level)
	if err != nil {
		return err
	}
	for _, s := range drain.Merge(nil, nil, nil, sets, pattern) {
		kept := 0
		for i := len(s.Checkpoints) - 1; i >= 0; i-- {
			switch set := s.Checkpoints[i].Drained; {
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

// anyLevelNeeded refuses a command that has nothing to do without copies or a second level.
func (o *levelReader) anyLevelNeeded() error {
	if o.cfg.Copies != config.CopiesNone || o.cfg.CopiesSync {
		return nil
	}
	return o.levelNeeded()
}
