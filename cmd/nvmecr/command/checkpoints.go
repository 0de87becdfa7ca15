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
that of nvmecr latest; without it the names of all files are searched for such a number.

VERIFIED is when a checkpoint was last compared with its checksums, on each of its levels: in the store
by the last nvmecr verify on this host that read the whole store and found no damage, elsewhere when it
was copied. "copies 1/2" means that only one of the two targets that should hold copies has its part: the loss
of another target may take the checkpoint.`,
		Example: `  nvmecr checkpoints
  nvmecr checkpoints --name melt --level2 /lustre/me 'melt.{step}.*'`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			defer o.close()
			list, err := o.allLevels(cmd, optionalArg(args))
			if err != nil {
				return err
			}
			for i := range list {
				for j := range list[i].Checkpoints {
					list[i].Checkpoints[j].Away(func(f *checkpoint.File) bool { return o.awayFiles[f.Path] })
				}
			}
			if o.json {
				err = printJSON(cmd.OutOrStdout(), newLeveled(list, o.lastVerified()))
			} else {
				err = printCheckpoints(cmd.OutOrStdout(), list, o.lastVerified())
			}
			o.reportMirrors(cmd.Context())
			return errors.Join(err, o.end())
		},
	}
	o.bindSets(cmd, "level2", "copies", "copies-sync")
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON, with the files [NVMECR_JSON]")
	return cmd
}

// Names of the levels in tables, JSON and --from.
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

// formatLevels formats the levels of a checkpoint for the table.
func formatLevels(c *drain.Checkpoint) string {
	list := levelsOf(c)
	if i := slices.Index(list, levelCopies); i >= 0 {
		list[i] = formatCopies(c.Copied)
	}
	return strings.Join(list, ", ")
}

// formatCopies says how complete the copies of a set are and, for shards, how many more may be lost.
func formatCopies(s *drain.Set) string {
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

// copyVerifiedAt returns when a copy outside of the store was last verified; nil if there is no such copy.
func copyVerifiedAt(c *drain.Checkpoint) (at *time.Time) {
	for _, s := range []*drain.Set{c.Copied, c.Drained} {
		if s != nil && (at == nil || s.Drained.After(*at)) {
			at = &s.Drained
		}
	}
	return at
}

// lastVerified returns when nvmecr verify on this host last verified the whole store; zero if never.
func (o *checkpointsOptions) lastVerified() time.Time {
	dir, err := store.FindStateDir(o.cfg.Name)
	if err != nil {
		return time.Time{}
	}
	return dir.Verified()
}

// isVerified reports whether the files of a checkpoint are unchanged since the whole store was verified at time
// stored.
func isVerified(c *drain.Checkpoint, stored time.Time) bool {
	return c.Stored && c.Complete() && len(c.Need) == 0 && !slices.ContainsFunc(c.Files, func(f checkpoint.File) bool { return !f.Created.Before(stored) || !f.Modified.Before(stored) })
}

// verificationTimes returns the times of verification of a checkpoint, one for each of its levels.
func verificationTimes(c *drain.Checkpoint, stored time.Time) (list []string) {
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

// ranksOf returns how many ranks wrote files of the checkpoint; "-" if that is unknown.
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
				c.Ended().Local().Format(time.DateTime), formatLevels(c), strings.Join(verificationTimes(c, stored), ", "), complete)
		}
	}
	return t.Flush()
}

// A leveledSeries is the JSON of checkpoints on all levels.
type leveledSeries struct {
	Pattern string       `json:"pattern"`
	Latest  string       `json:"latest,omitempty"` // name of the newest complete one on any level
	Sets    []leveledSet `json:"checkpoints"`      // oldest first
}

type leveledSet struct {
	latestSet
	Levels    []string   `json:"levels"`
	Protected bool       `json:"protected"`               // the loss of another target loses nothing
	Shards    *shardSet  `json:"shards,omitempty"`        // if the copies are shards
	Stored    *time.Time `json:"storeVerified,omitempty"` // when nvmecr verify last read the whole store
	Directory string     `json:"directory,omitempty"`     // on the second level
	Verified  *time.Time `json:"verified,omitempty"`      // last verification on the second level or of the copies
}

// A shardSet is the state of a checkpoint that is stored as shards of an erasure code.
type shardSet struct {
	Code    string `json:"code"`
	Lacking []int  `json:"lacking"` // numbers of the missing shards
	Spare   int    `json:"spare"`   // how many more may be lost; negative: too many are missing
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
				latestSet: newSet(&c.Set), Levels: levelsOf(c), Verified: copyVerifiedAt(c), Protected: c.Protected(), Shards: newShardSet(c.Copied),
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
