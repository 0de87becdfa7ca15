package command

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/nvmf"
)

type checkpointsOptions struct {
	levelReader
	json bool
}

func newCheckpoints() *cobra.Command {
	o := &checkpointsOptions{}
	cmd := &cobra.Command{
		Use:   "checkpoints [flags] [PATTERN]",
		Short: "List the checkpoints on all levels",
		Long: `Lists the checkpoints of a store, and of its second level if it has one
(--level2): sets of files of all ranks whose names have the same number in them. PATTERN is
that of nvmecr latest; without it the number is looked for in the names of all files.

A checkpoint on the second level is complete: it was read back and compared when it was
copied, and VERIFIED says when.`,
		Example: `  nvmecr checkpoints
  nvmecr checkpoints --name melt --level2 /lustre/me 'melt.{step}.*'`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			defer o.close()
			list, err := o.both(cmd, first(args))
			if err != nil {
				return err
			}
			if o.json {
				err = printJSON(cmd.OutOrStdout(), newLeveled(list))
			} else {
				err = printCheckpoints(cmd.OutOrStdout(), list)
			}
			return errors.Join(err, o.end())
		},
	}
	o.bindSets(cmd, "level2")
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON, with the files [NVMECR_JSON]")
	return cmd
}

// The levels, as they are listed.
const (
	levelStore  = "store"
	levelSecond = "level2"
)

func levelsOf(c *drain.Checkpoint) (list []string) {
	if c.Stored {
		list = append(list, levelStore)
	}
	if c.Drained != nil {
		list = append(list, levelSecond)
	}
	return list
}

func printCheckpoints(w io.Writer, list []drain.Series) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PATTERN\tNAME\tFILES\tSIZE\tENDED\tON\tVERIFIED\tCOMPLETE")
	for _, s := range list {
		for i := range s.Checkpoints {
			c := &s.Checkpoints[i]
			verified, complete := "-", "yes"
			if c.Drained != nil {
				verified = c.Drained.Drained.Local().Format(time.DateTime)
			}
			if !c.Complete() {
				complete = "no: " + missing(&c.Set)
			}
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", printable(s.Pattern), printable(c.Name), len(c.Files), size(nvmf.Bytes(c.Size())),
				c.Ended().Local().Format(time.DateTime), strings.Join(levelsOf(c), ", "), verified, complete)
		}
	}
	return t.Flush()
}

// A leveledSeries is the JSON of checkpoints on all levels.
type leveledSeries struct {
	Pattern string       `json:"pattern"`
	Latest  string       `json:"latest,omitempty"` // the name of the newest complete one, of any level
	Sets    []leveledSet `json:"checkpoints"`      // oldest first
}

type leveledSet struct {
	latestSet
	Levels    []string   `json:"levels"`
	Directory string     `json:"directory,omitempty"` // on the second level
	Verified  *time.Time `json:"verified,omitempty"`
}

func newLeveled(list []drain.Series) []leveledSeries {
	all := []leveledSeries{}
	for _, s := range list {
		series := leveledSeries{Pattern: s.Pattern, Sets: []leveledSet{}}
		if c := s.Newest(); c != nil {
			series.Latest = c.Name
		}
		for i := range s.Checkpoints {
			c := &s.Checkpoints[i]
			set := leveledSet{latestSet: newSet(&c.Set), Levels: levelsOf(c)}
			if c.Drained != nil {
				set.Directory, set.Verified = c.Drained.Dir, &c.Drained.Drained
			}
			series.Sets = append(series.Sets, set)
		}
		all = append(all, series)
	}
	return all
}
