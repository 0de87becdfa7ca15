package command

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"nvmecr/checkpoint"
	"nvmecr/drain"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
)

// restoreNewer makes sure that the store has the newest complete checkpoint of each series, and reports which that
// is. If the copy of a checkpoint is damaged, the next older checkpoint is used.
func (o *restoreOptions) restoreNewer(cmd *cobra.Command, cfg *config.Config, proc store.Proc, pattern string) error {
	o.skipDamaged = true
	list, err := o.allLevels(cmd, pattern)
	if err == nil {
		err = o.end()
	}
	if err != nil {
		return err
	}
	for i := range list {
		if err := o.restoreNewest(cmd, cfg, proc, &list[i]); err != nil {
			return err
		}
	}
	return nil
}

func (o *restoreOptions) restoreNewest(cmd *cobra.Command, cfg *config.Config, proc store.Proc, s *drain.Series) (err error) {
	say := func(i int, where string) {
		c := &s.Checkpoints[i]
		fmt.Fprintf(o.stderr, "nvmecr: newest complete checkpoint of %s: %s, %s\n", printable(s.Pattern), printable(c.Name), where)
		upToIt := drain.Series{Pattern: s.Pattern, Checkpoints: s.Checkpoints[:i+1]} // later ones could not be copied back
		if other, ok := plainSeries([]drain.Series{upToIt})[0].Overtaken(); ok {
			fmt.Fprintf(o.stderr, "nvmecr: passed over: %s\n", printable(overtaken(other, &c.Set)))
		}
	}
	for i := len(s.Checkpoints) - 1; i >= 0; i-- {
		c := &s.Checkpoints[i]
		switch {
		case !c.Complete() && slices.ContainsFunc(c.Missing, func(p checkpoint.Part) bool { return p.Lost }):
			fmt.Fprintf(o.stderr, "nvmecr: checkpoint %s of %s is lost: %s\n", printable(c.Name), printable(s.Pattern), printable(missing(&c.Set)))
			continue
		case !c.Complete():
			continue
		case c.InStore():
			say(i, "in the store")
			return nil
		case len(c.Replaced) > 0:
			say(i, notCopiedBack(c))
			return nil
		}
		for _, from := range o.origins(c) {
			if err = o.fetch(cmd.Context(), cfg, proc, from); err == nil {
				say(i, from.describe())
				return nil
			}
			fmt.Fprintf(o.stderr, "nvmecr: %s is passed over: %v\n", printable(from.set.Dir), err)
		}
	}
	return err
}

// notCopiedBack describes why a checkpoint is not restored: it would replace files that belong to no checkpoint of its series.
func notCopiedBack(c *drain.Checkpoint) string {
	return fmt.Sprintf("not copied back, since the store has %s with its names and other content, the first is %s: say with --level2-pattern which files are checkpoints, or copy it back with nvmecr restore --checkpoint %[3]s",
		count(len(c.Replaced), "file"), printable(c.Replaced[0].Path), printable(c.Name))
}

// describe says for restoreNewest where a checkpoint was restored from.
func (from origin) describe() string {
	if from.need == nil {
		return "copied back from " + printable(from.set.Dir)
	}
	files, bytes := from.amount()
	return fmt.Sprintf("%s of %s copied back from %s", count(files, "file"), size(bytes), printable(from.set.Dir))
}
