package command

import (
	"context"

	"github.com/spf13/cobra"

	"nvmecr/bench"
	"nvmecr/internal/cli"
	"nvmecr/nvmf"
)

// newRankDrilldown is for the conductor of the benchmark alone.
func newRankDrilldown() *cobra.Command {
	var namespace, conductor string
	cmd := &cobra.Command{
		Use: "rank-drilldown", Hidden: true,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			id, err := nvmf.ParseTransportID(namespace)
			if err != nil {
				return cli.UsageError{Err: err}
			}
			return bench.DrillRank(context.Background(), id, conductor)
		},
	}
	cmd.Flags().StringVar(&namespace, "namespace", "", "`NAMESPACE` to write to")
	cmd.Flags().StringVar(&conductor, "conductor", "", "`ADDRESSES` of the conductor")
	return cmd
}
