package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/checkpoint"
	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/config"
)

// exitUnknown is the exit status if it cannot be determined whether there is a complete checkpoint. cli.Failure means
// that there is none.
const exitUnknown = 2

type latestOptions struct {
	levelReader
	json  bool
	files bool
}

func newLatest() *cobra.Command {
	o := &latestOptions{}
	cmd := &cobra.Command{
		Use:   "latest [flags] [PATTERN]",
		Short: "Print the newest complete checkpoint, to restart from",
		Long: `Prints the step of the newest checkpoint that is complete on every rank, as it
is spelled in the names of its files. The newest is the one that was written last, also
if its number is smaller than that of another, as after going back to an earlier step. PATTERN is the path of these files with {step}
in the place of the number, or {name} for any text; * is any text within a name, ** any path. Without
PATTERN the names of all files are searched for such a number; where several kinds
of files have one, a PATTERN is required.

A checkpoint is complete when each rank has its files, and has closed them: those files that most of the
other checkpoints have, apart from the number. Every rank is expected to have some,
unless the files are all of one rank, or --writers names the ranks. A file that
several ranks have written must have been closed by all of them.

The exit status is 0 if there is a complete checkpoint, 1 if there is none, and 2 if that cannot
be determined: a partition cannot be read, the same ranks have no files of several
checkpoints, the only complete ones are on other levels (outside of a run, which copies the newest back when it begins), or the command line is wrong. With
--json, which prints all checkpoints, it is 0 if all could be read.`,
		Example: `  nvmecr latest                              # 400
  step=$(nvmecr latest 'melt.{step}.*')      # of one kind of files
  nvmecr latest --files 'ckpt-{step}/**'     # their paths under the mount
  nvmecr latest '{name}.cpt'                 # state, or state_prev`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.latest(cmd, strings.Join(args, ""))
			if err == nil || errors.As(err, new(cli.Status)) {
				return err
			}
			o.stderr = cmd.ErrOrStderr()
			o.fail(err)
			return cli.Status(exitUnknown)
		},
	}
	o.bindSets(cmd, "level2", "copies")
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print all checkpoints with their files as JSON [NVMECR_JSON]")
	cli.AddSwitch(cmd.Flags(), &o.files, "files", "", "print the paths of its files instead of the step [NVMECR_FILES]")
	return cmd
}

// latest prints the result. An error that is not a cli.Status means that the result is unknown.
func (o *latestOptions) latest(cmd *cobra.Command, pattern string) error {
	list, err := o.series(cmd, pattern)
	if err != nil {
		return err
	}
	var away *drain.Checkpoint
	if !o.json {
		away = o.newestAway(cmd, list, pattern)
		defer o.close()
	}
	if o.tree {
		clearRanks(list)
	}
	if o.json {
		return errors.Join(printJSON(cmd.OutOrStdout(), newSeries(list)), o.end())
	}
	if o.failed {
		return cli.Status(exitUnknown)
	}
	err = o.print(cmd.OutOrStdout(), list, pattern)
	if away == nil {
		return err
	}
	where := fmt.Errorf("%s is complete on %s, and not in the store: the next nvmecr run, or nvmecr restore, copies it back", away.Name, strings.Join(levelsOf(away), ", "))
	if errors.Is(err, cli.Status(cli.Failure)) { // a script that is told that there is none begins from the start
		return where
	}
	fmt.Fprintln(o.stderr, cli.OneLine(where))
	return err
}

// newestAway returns the newest complete checkpoint if only other levels have it; nil if the store has it, or there is none. In a run the newest has been
// copied back.
func (o *latestOptions) newestAway(cmd *cobra.Command, list []checkpoint.Series, pattern string) *drain.Checkpoint {
	if os.Getenv(config.RunVariable) != "" {
		return nil
	}
	drained, err := o.wholeDrained()
	if err != nil {
		o.warn(err)
	}
	merged := drain.Merge(list, o.setReader.files, o.copiedSets(cmd.Context()), drained, o.patternInside(pattern))
	series, err := choose(merged, "latest")
	if err != nil {
		return nil // as print reports
	}
	if c := series.Newest(); c != nil && !c.InStore() {
		return c
	}
	return nil
}

func (o *latestOptions) print(w io.Writer, list []checkpoint.Series, pattern string) error {
	if len(list) == 0 {
		return o.none(pattern, "")
	}
	series, matching := &list[0], pattern
	if pattern == "" {
		var err error
		if series, err = checkpoint.Choose(list); err != nil {
			return fmt.Errorf("%w; say which is meant, as in: nvmecr latest '%s'", err, list[0].Pattern)
		}
		matching = series.Pattern
	}
	set, ok := series.Newest()
	last := &series.Sets[len(series.Sets)-1]
	if set, undecided := series.Undecided(); undecided {
		return fmt.Errorf("store %q: %s; the one before lacks the same: if these ranks write none, name with --writers those that do",
			o.cfg.Name, incomplete(set))
	}
	if !ok {
		return o.none(matching, ": "+incomplete(last))
	}
	if last != set {
		fmt.Fprintln(o.stderr, cli.OneLine(errors.New("passed over: "+incomplete(last))))
	}
	if other, ok := series.Overtaken(); ok {
		fmt.Fprintln(o.stderr, cli.OneLine(errors.New("passed over: "+overtaken(other, set))))
	}
	if !o.files {
		_, err := fmt.Fprintln(w, printable(set.Name))
		return err
	}
	var paths []string
	for _, f := range set.Files {
		paths = append(paths, printable(path.Join(o.cfg.Mount, f.Path)))
	}
	slices.Sort(paths)
	_, err := fmt.Fprintln(w, strings.Join(slices.Compact(paths), "\n"))
	return err
}

// none reports that no checkpoint is complete.
func (o *latestOptions) none(pattern, why string) error {
	matching := "matches " + pattern
	if pattern == "" {
		matching = "is there, and no file with a step in its name; a PATTERN finds others"
	}
	o.fail(fmt.Errorf("store %q: no complete checkpoint %s%s", o.cfg.Name, matching, why))
	return cli.Status(cli.Failure)
}

// maxMissing is the maximum number of files that a message names. JSON has all.
const maxMissing = 3

// incomplete is a message about what a checkpoint lacks.
func incomplete(s *checkpoint.Set) string {
	return fmt.Sprintf("%s is incomplete: %s", s.Name, missing(s))
}

// overtaken is a message about a checkpoint with a greater number than the newest one.
func overtaken(s, newest *checkpoint.Set) string {
	text := func(s *checkpoint.Set) string { return s.Written().Local().Format(time.DateTime) }
	return fmt.Sprintf("%s was written %s, and %s after it, %s", s.Name, text(s), newest.Name, text(newest))
}

// missing lists the files that a checkpoint lacks.
func missing(s *checkpoint.Set) string {
	var list []string
	for _, p := range s.Missing[:min(len(s.Missing), maxMissing)] {
		list = append(list, p.String())
	}
	if more := len(s.Missing) - maxMissing; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}

// A latestSeries is the JSON of the checkpoints that match one pattern.
type latestSeries struct {
	Pattern string      `json:"pattern"`
	Latest  string      `json:"latest,omitempty"` // the name of the newest complete set
	Sets    []latestSet `json:"checkpoints"`      // oldest first
}

type latestSet struct {
	Name     string       `json:"name"` // the step
	Complete bool         `json:"complete"`
	Missing  []latestPart `json:"missing,omitempty"`
	Ranks    []int        `json:"ranks"`
	Size     int64        `json:"size"`
	Begun    time.Time    `json:"begun"`
	Ended    time.Time    `json:"ended"`
	Files    []latestFile `json:"files"`
}

// A latestPart is a missing file. Without a rank it may be of any rank; without a path it is all files of the rank.
type latestPart struct {
	Rank *int   `json:"rank,omitempty"`
	Path string `json:"path,omitempty"`
	Open bool   `json:"open,omitempty"` // it exists, but was not closed
	Lost bool   `json:"lost,omitempty"` // it exists, but bytes of it are lost
	Away bool   `json:"away,omitempty"` // it exists, but a target with bytes of it cannot be reached
}

type latestFile struct {
	Rank     int       `json:"rank"`
	Path     string    `json:"path"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Complete bool      `json:"complete"`
}

func newSeries(list []checkpoint.Series) []latestSeries {
	all := []latestSeries{}
	for _, s := range list {
		series := latestSeries{Pattern: s.Pattern}
		if set, ok := s.Newest(); ok {
			series.Latest = set.Name
		}
		for i := range s.Sets {
			series.Sets = append(series.Sets, newSet(&s.Sets[i]))
		}
		all = append(all, series)
	}
	return all
}

func newSet(s *checkpoint.Set) latestSet {
	set := latestSet{
		Name: s.Name, Complete: s.Complete(), Ranks: s.Ranks(), Size: s.Size(), Begun: s.Begun(), Ended: s.Ended(),
	}
	for _, p := range s.Missing {
		part := latestPart{Path: p.Path, Open: p.Open, Lost: p.Lost, Away: p.Away}
		if p.Rank >= 0 {
			part.Rank = &p.Rank
		}
		set.Missing = append(set.Missing, part)
	}
	for _, f := range s.Files {
		set.Files = append(set.Files, latestFile{f.Rank, f.Path, f.Size, f.Modified, f.Closed})
	}
	return set
}
