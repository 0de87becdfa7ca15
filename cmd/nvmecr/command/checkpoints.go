package command

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/checkpoint"
	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/store"
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
		Long: `Lists the checkpoints of a store, their copies on other targets (--copies), and those of its second level if it has one
(--level2): sets of files of all ranks whose names have the same number in them. PATTERN is
that of nvmecr latest; without it the number is looked for in the names of all files.

VERIFIED says when it was read and compared with its checksums, on each of its levels: in the store
by the last nvmecr verify on this host that read all of it and found no damage, elsewhere when it
was copied. "copies 1/2" says that one of two targets with parts of the copies has them: the loss
of another target may take the checkpoint.`,
		Example: `  nvmecr checkpoints
  nvmecr checkpoints --name melt --level2 /lustre/me 'melt.{step}.*'`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			defer o.close()
			list, err := o.allLevels(cmd, first(args))
			if err != nil {
				return err
			}
			if o.json {
				err = printJSON(cmd.OutOrStdout(), newLeveled(list, o.verified()))
			} else {
				err = printCheckpoints(cmd.OutOrStdout(), list, o.verified())
			}
			o.sayMirrors(cmd.Context())
			return errors.Join(err, o.end())
		},
	}
	o.bindSets(cmd, "level2", "copies", "copies-sync")
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON, with the files [NVMECR_JSON]")
	return cmd
}

// The levels, as they are listed.
const (
	levelStore  = "store"
	levelCopies = "copies"
	levelSecond = "level2"
)

func levelsOf(c *drain.Checkpoint) (list []string) {
	if c.InStore() {
		list = append(list, levelStore)
	}
	if c.Copied != nil {
		list = append(list, levelCopies)
	}
	if c.Drained != nil {
		list = append(list, levelSecond)
	}
	return list
}

// levelText is levelsOf for people.
func levelText(c *drain.Checkpoint) string {
	list := levelsOf(c)
	if i := slices.Index(list, levelCopies); i >= 0 {
		list[i] = copiesText(c.Copied)
	}
	return strings.Join(list, ", ")
}

// copiesText says which copies of a set there are, and of shards how many more may be lost.
func copiesText(s *drain.Set) string {
	whole := s.Code == drain.Code{}
	switch {
	case whole && s.Protected():
		return levelCopies
	case whole:
		return fmt.Sprintf("%s %d/%d", levelCopies, s.PartsPresent(), len(s.Parts))
	case s.Protected():
		return fmt.Sprint(s.Code, " protected")
	}
	without := fmt.Sprintf("%v without shards %s", s.Code, strings.Trim(fmt.Sprint(s.Lacking()), "[]"))
	if s.Spare() < 0 {
		return without + ": too few"
	}
	return fmt.Sprintf("%s: bears %d more", without, s.Spare())
}

// verifiedAt returns when a checkpoint was last read back on another level than the store; nil if it is on none.
func verifiedAt(c *drain.Checkpoint) (at *time.Time) {
	for _, s := range []*drain.Set{c.Copied, c.Drained} {
		if s != nil && (at == nil || s.Drained.After(*at)) {
			at = &s.Drained
		}
	}
	return at
}

// verified returns when all of the store was last verified, by nvmecr verify on this host; the zero time: never.
func (o *checkpointsOptions) verified() time.Time {
	dir, err := store.FindStateDir(o.cfg.Name)
	if err != nil {
		return time.Time{}
	}
	return dir.Verified()
}

// isVerified says whether a checkpoint was in the store when that was verified, as it is now.
func isVerified(c *drain.Checkpoint, stored time.Time) bool {
	return c.Stored && c.Complete() && len(c.Need) == 0 && !slices.ContainsFunc(c.Files, func(f checkpoint.File) bool { return !f.Created.Before(stored) || !f.Modified.Before(stored) })
}

// verifiedOn is when it was verified on each of its levels.
func verifiedOn(c *drain.Checkpoint, stored time.Time) (list []string) {
	text := func(t time.Time) string { return t.Local().Format(time.DateTime) }
	switch {
	case isVerified(c, stored):
		list = append(list, text(stored))
	case c.InStore():
		list = append(list, "-")
	}
	for _, s := range []*drain.Set{c.Copied, c.Drained} {
		if s != nil {
			list = append(list, text(s.Drained))
		}
	}
	return list
}

// ranksOf is how many ranks have written files of it; "-" where that is not known.
func ranksOf(c *drain.Checkpoint) string {
	n := 0
	for _, rank := range c.Ranks() {
		if rank >= 0 {
			n++
		}
	}
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func printCheckpoints(w io.Writer, list []drain.Series, stored time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PATTERN\tNAME\tRANKS\tFILES\tSIZE\tENDED\tON\tVERIFIED\tCOMPLETE")
	for _, s := range list {
		for i := range s.Checkpoints {
			c := &s.Checkpoints[i]
			complete := "yes"
			if !c.Complete() {
				complete = "no: " + missing(&c.Set)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", printable(s.Pattern), printable(c.Name), ranksOf(c), len(c.Files), size(nvmf.Bytes(c.Size())),
				c.Ended().Local().Format(time.DateTime), levelText(c), strings.Join(verifiedOn(c, stored), ", "), complete)
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
	Protected bool       `json:"protected"`               // another loss costs nothing
	Shards    *shardSet  `json:"shards,omitempty"`        // which copies are
	Stored    *time.Time `json:"storeVerified,omitempty"` // when nvmecr verify last read the store
	Directory string     `json:"directory,omitempty"`     // on the second level
	Verified  *time.Time `json:"verified,omitempty"`      // there, or on copies
}

// A shardSet says what there is of a checkpoint that is cut into shards.
type shardSet struct {
	Code    string `json:"code"`
	Lacking []int  `json:"lacking"` // their numbers
	Spare   int    `json:"spare"`   // how many more may be lost; negative: too many are
}

func newShardSet(s *drain.Set) *shardSet {
	if s == nil || s.Code == (drain.Code{}) {
		return nil
	}
	return &shardSet{s.Code.String(), append([]int{}, s.Lacking()...), s.Spare()}
}

func newLeveled(list []drain.Series, stored time.Time) []leveledSeries {
	all := []leveledSeries{}
	for _, s := range list {
		series := leveledSeries{Pattern: s.Pattern, Sets: []leveledSet{}}
		if c := s.Newest(); c != nil {
			series.Latest = c.Name
		}
		for i := range s.Checkpoints {
			c := &s.Checkpoints[i]
			set := leveledSet{
				latestSet: newSet(&c.Set), Levels: levelsOf(c), Verified: verifiedAt(c), Protected: c.Protected(), Shards: newShardSet(c.Copied),
			}
			if isVerified(c, stored) {
				set.Stored = &stored
			}
			if c.Drained != nil {
				set.Directory = c.Drained.Dir
			}
			series.Sets = append(series.Sets, set)
		}
		all = append(all, series)
	}
	return all
}
