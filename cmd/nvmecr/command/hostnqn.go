package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
)

func newHostNQN() *cobra.Command {
	cfg := config.Default()
	cmd := &cobra.Command{
		Use:   "hostnqn [flags]",
		Short: "Print the NQN by which targets know this host",
		Long: `Prints what to give to a target's --allow-host and into its files of keys: the
NQN of --hostnqn, else that of /etc/nvme/hostnqn, else the one that nvmecr makes from
the machine's and the user's id.`,
		Example: `  nvmecr hostnqn`,
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Resolve(); err != nil {
				return cli.UsageError{Err: err}
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), cfg.Host())
			return err
		},
	}
	cfg.BindFlags(cmd.Flags(), "hostnqn")
	return cmd
}
