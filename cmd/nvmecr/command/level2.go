package command

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"nvmecr/checkpoint"
	"nvmecr/drain"
	"nvmecr/drain/s3"
	"nvmecr/internal/cli"
	"nvmecr/internal/config"
)

// A levelReader is the common part of commands that read checkpoints of all levels.
type levelReader struct {
	setReader
	level       drain.Archive // the second level; nil if there is none
	copies      *copyAreas    // nil if the store has no copies
	skipDamaged bool          // a damaged set of the second level does not fail the command
	unlisted    bool          // the files of the store could not be listed, an error that was reported
}

// allLevels returns the checkpoints of a pattern on all levels. A store that was never written, or no longer exists,
// has none.
func (o *levelReader) allLevels(cmd *cobra.Command, pattern string) ([]drain.Series, error) {
	list, err := o.series(cmd, pattern)
	if err != nil && (o.requireAnyLevel() != nil || errors.Is(err, checkpoint.ErrPattern) || errors.As(err, new(cli.UsageError))) {
		return nil, err
	}
	if o.unlisted = err != nil; o.unlisted { // the copies may be readable
		o.fail(err)
	}
	drained, err := o.drainedSets()
	return drain.Merge(list, o.files, o.copiedSets(cmd.Context()), drained, o.patternInside(pattern)), err
}

// drainedSets returns the sets of the second level, and reports damaged ones.
func (o *levelReader) drainedSets() (sets []drain.Set, err error) {
	if o.cfg.Level2 == "" {
		return nil, nil
	}
	if o.level, err = openLevel2(o.cfg); err != nil {
		return nil, err
	}
	sets, err = o.level.Sets()
	switch damaged := (drain.DamagedSets)(nil); {
	case o.skipDamaged && errors.As(err, &damaged):
		for _, d := range damaged {
			fmt.Fprintf(o.stderr, "nvmecr: %s is passed over: %v\n", printable(d.Dir), d.Err)
		}
	case err != nil:
		o.fail(err)
	}
	return sets, nil
}

// wholeDrained is drainedSets without the errors about damaged sets.
func (o *levelReader) wholeDrained() (sets []drain.Set, err error) {
	if o.cfg.Level2 == "" {
		return nil, nil
	}
	if o.level, err = openLevel2(o.cfg); err != nil {
		return nil, err
	}
	return wholeSets(o.level)
}

// openLevel2 opens the second level of a store: a directory, or a bucket.
func openLevel2(cfg *config.Config) (drain.Archive, error) {
	if strings.HasPrefix(cfg.Level2, s3.Scheme) {
		return s3.Open(cfg.Level2, cfg.Name, os.Getenv)
	}
	level, err := drain.Open(cfg.Level2, cfg.Name)
	if err != nil {
		return nil, err
	}
	return level, nil
}

func (o *levelReader) close() {
	if o.copies != nil {
		_ = o.copies.close() // only read
	}
	if o.level != nil {
		_ = o.level.Close() // only read
	}
}

// choose returns the series to use. Without a pattern there must be one at most.
func choose(list []drain.Series, command string) (*drain.Series, error) {
	chosen, err := checkpoint.Choose(plainSeries(list))
	if err != nil {
		if len(list) > 0 {
			err = fmt.Errorf("%w; say which is meant, as in: nvmecr %s '%s'", err, command, list[0].Pattern)
		}
		return nil, err
	}
	for i := range list {
		if list[i].Pattern == chosen.Pattern {
			return &list[i], nil
		}
	}
	return nil, checkpoint.ErrNone
}

// plainSeries returns series without the levels of their checkpoints.
func plainSeries(list []drain.Series) []checkpoint.Series {
	plain := make([]checkpoint.Series, len(list))
	for i, s := range list {
		plain[i].Pattern = s.Pattern
		for _, c := range s.Checkpoints {
			plain[i].Sets = append(plain[i].Sets, c.Set)
		}
	}
	return plain
}

// requireLevel2 returns a usage error if there is no second level.
func (o *levelReader) requireLevel2() error {
	if o.cfg.Level2 == "" {
		return cli.UsageError{Err: fmt.Errorf("no second level: name its directory, or s3://BUCKET/PREFIX, with --level2, or run the job with it")}
	}
	return nil
}

// checkIncremental refuses --incremental where copies cannot share data.
func checkIncremental(cfg *config.Config, level drain.Archive) error {
	if !cfg.Incremental {
		return nil
	}
	if cfg.Compress != "" {
		return errors.New("--incremental: compressed files share no data; leave --compress or --incremental out")
	}
	if err := level.CanShare(); err != nil {
		return fmt.Errorf("--incremental: %w; leave it out, or use another second level", err)
	}
	return nil
}

// newDrained describes a checkpoint of the store as a set for another level.
func (o *levelReader) newDrained(src *storeSource, pattern string, c *drain.Checkpoint) (*drain.Set, error) {
	s := &drain.Set{Store: o.cfg.Name, Pattern: pattern, Name: c.Name, Ranks: cmp.Or(o.size, 1), Tree: o.tree, Ended: c.Ended()}
	for _, f := range c.Files {
		a, err := src.stat(f.Rank, f.Path)
		if err != nil {
			return nil, o.explain(err, f.Rank, f.Path)
		}
		s.Files = append(s.Files, drain.File{Rank: f.Rank, Path: f.Path, Size: f.Size, Mode: drain.Mode(a.Mode & 0o777), Modified: f.Modified})
	}
	return s, nil
}
