// Package command is the command line of nvmecr, with a file and an options struct for each subcommand. Decisions
// about storage (what is read, written or refused) are made in internal/store and the packages below it.
package command

import (
	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
)

// Main runs the command line args and returns the exit status. Errors are
// printed on stderr, on one line.
func Main(args []string) int { return cli.Execute(newRoot(), benchArgs(args)) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "nvmecr",
		Short: "Checkpoint storage for MPI jobs, on NVMe-over-Fabrics namespaces",
		Long: `nvmecr gives all ranks of an unmodified MPI application one tree of files under the
mount (/nvmecr), or with --view=rank each a private file system. What a rank writes goes to its own
slice of an NVMe-over-Fabrics namespace and survives the death of the job; a run of the
same name finds it again.`,
		Example: `  nvmecr run -- mpirun -n 4 ./app            # checkpoints go under /nvmecr
  nvmecr ls                                  # what there is
  nvmecr cp /state.42 ./state.42             # copy a file out`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cli.Prepare(root)
	root.Version = versionText()
	root.SetVersionTemplate("{{.Version}}")
	root.AddCommand(
		newRun(), newServe(), newTarget(), newAdmin(), newKeygen(),
		newLs(), newLatest(), newCheckpoints(), newDrain(), newRestore(), newRebuild(), newAdvise(), newCat(), newMount(), newCp(), newStat(), newStores(), newFsck(), newVerify(), newRelease(),
		newHostNQN(), newDiscover(), newCheck(), newPlan(), newSlurm(), newDemo(), newBench(), newVersion(),
	)
	return root
}
