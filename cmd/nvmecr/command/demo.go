package command

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/demo"
)

type demoOptions struct {
	seed   int64
	target string
}

func newDemo() *cobra.Command {
	o := &demoOptions{}
	cmd := &cobra.Command{
		Use:   "demo [flags]",
		Short: "Watch a LAMMPS job be killed and restart",
		Long: `Runs LAMMPS on 4 ranks twice: once undisturbed, and once on nvmecr, where the
whole job and its target (but not one of --demo-target) are killed at a random instant and started again from
the newest complete checkpoint. It compares the results digit by digit and ends
with status 1 if any differs. Takes about a minute and leaves nothing behind.`,
		Example: `  nvmecr demo
  nvmecr demo --demo-target "trtype:TCP traddr:10.0.0.5 subnqn:nqn.2014-08.org.example:scratch ns:1"
  nvmecr demo --seed 7`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd)
		},
	}
	cmd.Flags().Int64Var(&o.seed, "seed", 0, "`SEED` of the random instant, 0 for another one each time [NVMECR_SEED]")
	cmd.Flags().StringVar(&o.target, "demo-target", "", "`NAMESPACE` of a target to use instead of the embedded one; its content is overwritten [NVMECR_DEMO_TARGET]")
	return cmd
}

func (o *demoOptions) run(cmd *cobra.Command) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	seed := o.seed
	if seed == 0 {
		seed = time.Now().UnixNano() % 1_000_000
	}
	return demo.Run(ctx, cmd.OutOrStdout(), demo.Options{Nvmecr: self, Seed: seed, Target: o.target})
}
