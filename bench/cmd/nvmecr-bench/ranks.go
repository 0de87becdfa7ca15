package main

import (
	"context"

	"github.com/spf13/cobra"

	"nvmecr/bench"
	"nvmecr/internal/cli"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// newRankDrilldown returns a command that only the coordinator of the benchmark uses.
func newRankDrilldown() *cobra.Command {
	var namespace, coordinator string
	cmd := &cobra.Command{
		Use: "rank-drilldown", Hidden: true,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			id, err := nvmf.ParseTransportID(namespace)
			if err != nil {
				return cli.UsageError{Err: err}
			}
			return bench.DrillRank(context.Background(), id, coordinator)
		},
	}
	cmd.Flags().StringVar(&namespace, "namespace", "", "`NAMESPACE` to write to")
	cmd.Flags().StringVar(&coordinator, "coordinator", "", "`ADDRESSES` of the coordinator")
	return cmd
}

// newRankRaw returns a command that only the coordinator of the benchmark uses.
func newRankRaw() *cobra.Command {
	var namespace, coordinator, driver string
	var core int
	cmd := &cobra.Command{
		Use: "rank-raw", Hidden: true,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			id, err := nvmf.ParseTransportID(namespace)
			if err != nil {
				return cli.UsageError{Err: err}
			}
			return bench.RawRank(context.Background(), id, dial.Driver(driver), coordinator, core)
		},
	}
	cmd.Flags().StringVar(&namespace, "namespace", "", "`NAMESPACE` to write to")
	cmd.Flags().StringVar(&coordinator, "coordinator", "", "`ADDRESSES` of the coordinator")
	cmd.Flags().StringVar(&driver, "driver", string(dial.Go), "`DRIVER` for it")
	cmd.Flags().IntVar(&core, "core", -1, "`CORE` to stay on")
	return cmd
}

// newFuseLoopback returns a command for the experiments that need a FUSE file system.
func newFuseLoopback() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "fuse-loopback DIRECTORY MOUNTED", Hidden: true,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bench.FuseLoopback(args[0], args[1], limit, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "pass on `BYTES` in a second; 0: as many as there can be")
	return cmd
}
