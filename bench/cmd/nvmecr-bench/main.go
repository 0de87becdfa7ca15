// Command nvmecr-bench implements `nvmecr bench`: the program nvmecr executes it with
// the arguments after the word bench. It is a separate program, so that nvmecr does not
// include the dependencies of the benchmark.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"nvmecr/bench"
	"nvmecr/internal/cli"
)

func main() {
	os.Exit(cli.Execute(newRoot(), os.Args[1:]))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:         "nvmecr-bench",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "nvmecr bench"},
		Short:       "Measure this machine or cluster, and compare it with other storage",
		Long: `Measures checkpoints as applications see them, and compares them with a raw
NVMe/TCP client, the sockets baseline and other file systems, in turns within one
run.

Without --target the storage is memory of a target process that the benchmark
starts. Ranks are processes on this host, unless --launch names a launcher. If
mpirun or srun has started nvmecr bench, the processes of that job are the ranks.`,
		Example: `  nvmecr bench checkpoint --ranks 4 --rounds 9
  nvmecr bench checkpoint --target "trtype:TCP traddr:10.0.0.5 subnqn:... ns:1" --launch "srun -n 64"
  mpirun -n 16 nvmecr bench checkpoint --peer dir:/lustre/scratch`,
		// nvmecr provides shell completion, and calls this program for it.
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              cli.Args(cobra.NoArgs),
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cli.Prepare(root)
	for i := range bench.Experiments {
		root.AddCommand(newExperiment(&bench.Experiments[i]))
	}
	root.AddCommand(newReport(), newRankRaw(), newRankDrilldown(), newFuseLoopback())
	return root
}
