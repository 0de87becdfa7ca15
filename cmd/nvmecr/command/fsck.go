package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

type fsckOptions struct {
	reader
	json   bool
	repair bool

	out     io.Writer
	report  fsckReport
	parts   int
	damaged int // partitions and tables with problems
	curable int // problems that --repair can put right
	notes   int
}

func newFsck() *cobra.Command {
	o := &fsckOptions{}
	cmd := &cobra.Command{
		Use:   "fsck [flags]",
		Short: "Check the file systems of the ranks",
		Long: `Checks the partition tables of the store and the metadata of every rank's
partition, or of one rank's: both copies of duplicated structures, the state
checkpoint, every page of the log since, and that names, links and blocks agree.
Where a job has one tree, it also checks that each partition has the shards that the tree refers to.
It reads only, and may run while the job does; the data of files is for
"nvmecr verify".

With --repair it rewrites damaged copies, removes files and directories that
no path leads to, corrects counts, and removes from the partitions of ranks the shards
of files that the tree no longer has. It never removes what a path leads to. It
is refused while a run of the store is in progress on any host (--takeover skips that
check), and while a process of the job has the partition, or may have one of the same
namespace on another host; --unfenced asserts that there is no such process.

The exit status is 0 if all is well (after the repair, if there was one), 1 if
there are problems or something could not be checked. Notes, about what a crash
leaves as a matter of course, are no problems.`,
		Example: `  nvmecr fsck
  nvmecr fsck --name melt --rank 3 --repair
  nvmecr fsck --json`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.fsck(cmd) },
	}
	o.bind(cmd, "unfenced", "takeover")
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	cli.AddSwitch(cmd.Flags(), &o.repair, "repair", "", "repair what can be repaired without losing data [NVMECR_REPAIR]")
	return cmd
}

// A fsckReport is the JSON of a check.
type fsckReport struct {
	Name    string       `json:"name"`
	Clean   bool         `json:"clean"`
	Targets []fsckTarget `json:"targets"`
	Ranks   []fsckRank   `json:"ranks"`
	// Tree has the findings about shards of the job's tree in the partitions of ranks.
	Tree []microfs.Finding `json:"tree,omitempty"`
}

type fsckTarget struct {
	Target   string            `json:"target"`
	Findings []microfs.Finding `json:"findings"`
	Error    string            `json:"error,omitempty"`
}

type fsckRank struct {
	Rank   int        `json:"rank"` // -1: the singleton partition; -4: the copy area
	Target string     `json:"target"`
	Start  nvmf.Bytes `json:"start"`
	Length nvmf.Bytes `json:"length"`
	*microfs.CheckReport
	Repaired []string `json:"repaired,omitempty"`
	Error    string   `json:"error,omitempty"`
}

func (o *fsckOptions) fsck(cmd *cobra.Command) error {
	ctx := cmd.Context()
	o.out = cmd.OutOrStdout()
	if err := o.find(cmd); err != nil {
		return err
	}
	if o.repair {
		unlock, err := o.takeStore(ctx)
		if err != nil {
			return err
		}
		defer unlock()
	}
	o.report.Name = o.cfg.Name
	o.report.Targets, o.report.Ranks = []fsckTarget{}, []fsckRank{}
	tree := o.partitionsOfTree(ctx)
	if err := o.check(ctx); err != nil {
		return neverWritten(err, o.cfg.Name)
	}
	if o.rank == allRanks && len(tree) > 0 {
		if err := o.checkTree(ctx, tree); err != nil {
			o.fail(fmt.Errorf("the tree of the job: %w", err))
		}
	}
	if o.parts == 0 && o.rank != allRanks && !o.failed {
		return cli.UsageError{Err: fmt.Errorf("store %q has no %s", o.cfg.Name, o.rankName(o.rank))}
	}
	o.report.Clean = o.damaged == 0 && !o.failed
	var err error
	if o.json {
		err = printJSON(o.out, o.report)
	} else {
		o.summary()
	}
	if o.damaged > 0 {
		o.failed = true
	}
	return errors.Join(err, o.end())
}

func (o *fsckOptions) check(ctx context.Context) error {
	return store.Check(ctx, o.cfg, store.CheckOptions{Rank: o.rank, Repair: o.repair, Target: o.target, Part: o.part})
}

// target reports on a namespace as a whole.
func (o *fsckOptions) target(r *store.TargetReport) {
	t := fsckTarget{Target: r.Target.String(), Findings: r.Findings}
	if r.Err != nil {
		t.Error = r.Err.Error()
		o.fail(fmt.Errorf("target %s: %w", r.Target, r.Err))
	}
	o.report.Targets = append(o.report.Targets, t)
	if o.judge(r.Findings) > microfs.Note {
		o.damaged++
	}
	o.print(fmt.Sprintf("target %s", r.Target), r.Findings, 0)
}

// judge returns the worst severity, and counts notes and repairable findings.
func (o *fsckOptions) judge(list []microfs.Finding) microfs.Severity {
	worst := microfs.Note
	for i := range list {
		worst = max(worst, list[i].Severity)
		switch list[i].Severity {
		case microfs.Note:
			o.notes++
		case microfs.Repairable:
			if list[i].Kind != microfs.FoundBusy { // a writer prevented the check
				o.curable++
			}
		}
	}
	return worst
}

// part reports on a partition.
func (o *fsckOptions) part(r *store.PartReport) {
	o.parts++
	p := fsckRank{
		Rank: r.Rank, Target: r.Target.String(), Start: r.Segment.Start, Length: r.Segment.Length,
		CheckReport: r.CheckReport, Repaired: r.Repaired,
	}
	who := o.rankName(r.Rank)
	if r.Err != nil {
		p.Error = r.Err.Error()
	}
	o.report.Ranks = append(o.report.Ranks, p)
	if !o.json {
		for _, done := range r.Repaired {
			fmt.Fprintf(o.out, "%s: repair: %s\n", who, done)
		}
	}
	if r.CheckReport != nil {
		worst := o.judge(r.Findings)
		if worst > microfs.Note {
			o.damaged++
		}
		if !o.json {
			fmt.Fprintf(o.out, "%s: %s\n", who, describe(r.CheckReport))
		}
		o.print(who, r.Findings, r.More)
	}
	if r.Err != nil {
		o.fail(fmt.Errorf("%s: %w", who, r.Err))
	}
}

// print lists findings.
func (o *fsckOptions) print(who string, list []microfs.Finding, more int) {
	if o.json {
		return
	}
	for i := range list {
		fmt.Fprintf(o.out, "%s: %s\n", who, printable(list[i].String()))
	}
	if more > 0 {
		fmt.Fprintf(o.out, "%s: and %d more\n", who, more)
	}
}

// describe summarizes the state of a partition in a line.
func describe(r *microfs.CheckReport) string {
	if r.Unformatted {
		return "nothing written yet"
	}
	verdict := "clean"
	switch worst := r.Worst(); {
	case worst == microfs.Loss:
		verdict = "damaged, data is lost"
	case worst == microfs.Repairable && onlyBusy(r):
		verdict = "could not be checked, check again later"
	case worst == microfs.Repairable:
		verdict = "damaged, can be repaired"
	}
	if r.InUse {
		verdict += ", being written to"
		if r.Holder != "" {
			verdict += " by " + r.Holder
		}
	}
	what := []string{count(r.Files, "file"), countOf(r.Directories, "directory", "directories")}
	if r.Links > 0 {
		what = append(what, count(r.Links, "symbolic link"))
	}
	what = append(what, size(r.Mapped)+" in "+count(r.Extents, "extent"))
	return fmt.Sprintf("%s: %s, log %d of %d pages", verdict, strings.Join(what, ", "), r.LogUsed, r.LogPages)
}

// onlyBusy reports whether the only problem is that a writer changed the partition during the check.
func onlyBusy(r *microfs.CheckReport) bool {
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Severity > microfs.Note && f.Kind != microfs.FoundBusy {
			return false
		}
	}
	return true
}

func (o *fsckOptions) summary() {
	verdict := "clean"
	switch {
	case o.damaged > 0 && o.failed:
		verdict = fmt.Sprintf("problems in %d of them, not all could be checked", o.damaged)
	case o.damaged > 0:
		verdict = fmt.Sprintf("problems in %d of them", o.damaged)
	case o.failed:
		verdict = "not all could be checked"
	}
	if o.notes > 0 {
		verdict += ", " + count(o.notes, "note")
	}
	if o.curable > 0 && !o.repair {
		verdict += "; `nvmecr fsck --repair` repairs what can be repaired"
	}
	fmt.Fprintf(o.out, "store %q: %s checked: %s\n", o.cfg.Name, count(o.parts, "partition"), verdict)
}
