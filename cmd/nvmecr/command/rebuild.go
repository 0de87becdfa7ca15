package command

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
)

func newRebuild() *cobra.Command {
	o := &restoreOptions{}
	cmd := &cobra.Command{
		Use:   "rebuild [flags] [PATTERN]",
		Short: "Restore what was lost with a target, from the copies",
		Long: `Restores all checkpoints whose data was lost, with a target that was replaced, from their copies on other
targets (--copies): first the newest, then the older ones, and prints a line for each. Name the new target with
--target, in the place of the lost one. If it is interrupted, another call continues.

A run restores the newest checkpoint when it begins.`,
		Example: `  nvmecr rebuild --name melt
  nvmecr rebuild --name melt --target ADDRESS-1 --target ADDRESS-OF-THE-NEW-ONE`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.stderr = cmd.ErrOrStderr()
			if err := o.cfg.Resolve(); err != nil {
				return cli.UsageError{Err: err}
			}
			return o.rebuild(cmd, args)
		},
	}
	o.bind(cmd, "copies", "copies-sync")
	return cmd
}

// rebuild starts a run of the store. Like any run that restores the newest checkpoints first; its job is to restore
// the others.
func (o *restoreOptions) rebuild(cmd *cobra.Command, args []string) error {
	if _, err := locate(o.cfg); err != nil && !o.cfg.Given("target") {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	run := &runOptions{cfg: o.cfg, stderr: o.stderr, rebuilds: true}
	return run.run(cmd.Context(), append([]string{self, "restore", "--lost"}, args...))
}

// restoreLost restores the lost files of checkpoints, the newest checkpoint first.
func (o *restoreOptions) restoreLost(cmd *cobra.Command, cfg *config.Config, proc store.Proc, pattern string) error {
	o.from, o.skipDamaged = levelCopies, true
	list, err := o.allLevels(cmd, pattern)
	if err == nil {
		err = o.end() // files that cannot be read now are not lost
	}
	if err != nil {
		return err
	}
	lost := findLost(list, o.fail)
	if len(lost) == 0 && o.end() == nil {
		fmt.Fprintln(cmd.OutOrStdout(), "no checkpoint that has copies lacks a file")
	}
	for i, c := range lost {
		from := o.origins(c)[0]
		if err := o.fetch(cmd.Context(), cfg, proc, from); err != nil {
			o.fail(fmt.Errorf("%s: %w", c.Name, err))
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%d of %d: %s: %s\n", i+1, len(lost), printable(c.Name), from.describe())
	}
	return o.end()
}

// findLost returns the checkpoints of which copies have lost files, the newest of each series first. Those that cannot be copied back are passed to fail.
func findLost(list []drain.Series, fail func(error)) (lost []*drain.Checkpoint) {
	for i := range list {
		s := &list[i]
		for j := len(s.Checkpoints) - 1; j >= 0; j-- {
			switch c := &s.Checkpoints[j]; {
			case c.Copied == nil || len(c.Need) == 0 || s.Rewritten(c): // no file of the checkpoint is lost
			case !c.Recoverable() && c.Drained != nil:
				fail(fmt.Errorf("%s: what is left of its copies is too little; nvmecr restore --from %s copies it back", c.Name, levelSecond))
			case !c.Recoverable():
				fail(fmt.Errorf("%s is lost, since what is left of its copies is too little: %s", c.Name, missing(&c.Set)))
			case len(c.Replaced) > 0:
				fail(fmt.Errorf("%s: %s", c.Name, notCopiedBack(c)))
			default:
				lost = append(lost, c)
			}
		}
	}
	return lost
}
