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

// A levelReader is what the commands have in common that look at all levels.
type levelReader struct {
	setReader
	level    drain.Archive // nil if there is no second one
	copies   *copyAreas    // nil if there are none
	passOver bool          // that a set of the second level is damaged is no failure
}

// allLevels returns the checkpoints of a pattern on all levels. A store that was never written, or that is not there
// any more, has none.
func (o *levelReader) allLevels(cmd *cobra.Command, pattern string) ([]drain.Series, error) {
	list, err := o.series(cmd, pattern)
	if err != nil && (o.anyLevelNeeded() != nil || errors.Is(err, checkpoint.ErrPattern) || errors.As(err, new(cli.UsageError))) {
		return nil, err
	}
	if err != nil { // what was copied is there nevertheless
		o.fail(err)
	}
	drained, err := o.drained()
	return drain.Merge(list, o.files, o.copied(cmd.Context()), drained, o.patternInside(pattern)), err
}

// drained returns the sets of the second level. Damaged ones are told of.
func (o *levelReader) drained() (sets []drain.Set, err error) {
	if o.cfg.Level2 == "" {
		return nil, nil
	}
	if o.level, err = openLevel2(o.cfg); err != nil {
		return nil, err
	}
	sets, err = o.level.Sets()
	switch damaged := (drain.DamagedSets)(nil); {
	case o.passOver && errors.As(err, &damaged):
		for _, d := range damaged {
			fmt.Fprintf(o.stderr, "nvmecr: %s is passed over: %v\n", printable(d.Dir), d.Err)
		}
	case err != nil:
		o.fail(err)
	}
	return sets, nil
}

// wholeDrained is drained without a word about damaged sets.
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
		_ = o.copies.close() // they were only read
	}
	if o.level != nil {
		_ = o.level.Close() // nothing is written by it
	}
}

// choose returns the series that is meant: with a pattern there is one at most.
func choose(list []drain.Series, command string) (*drain.Series, error) {
	plain := make([]checkpoint.Series, len(list))
	for i, s := range list {
		plain[i].Pattern = s.Pattern
		for _, c := range s.Checkpoints {
			plain[i].Sets = append(plain[i].Sets, c.Set)
		}
	}
	chosen, err := checkpoint.Choose(plain)
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

// levelNeeded refuses a command that has nothing to do without a second level.
func (o *levelReader) levelNeeded() error {
	if o.cfg.Level2 == "" {
		return cli.UsageError{Err: fmt.Errorf("no second level: name its directory, or s3://BUCKET/PREFIX, with --level2, or run the job with it")}
	}
	return nil
}

// checkIncremental refuses --incremental where it would save nothing.
func checkIncremental(cfg *config.Config, level drain.Archive) error {
	if !cfg.Incremental {
		return nil
	}
	if cfg.Compress != "" {
		return errors.New("--incremental: compressed files have nothing in common; leave --compress or --incremental out")
	}
	if err := level.CanShare(); err != nil {
		return fmt.Errorf("--incremental: %w; leave it out, or use another second level", err)
	}
	return nil
}

// newDrained returns what a checkpoint of the store is on the second level.
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
