// Package command is the command line of nvmecr: one file and one options
// struct for each subcommand. It decides nothing about storage; what is read,
// written or refused is decided in internal/store and below.
package command

import (
	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
)

// Main runs the command line args and returns the exit status. Errors are
// printed on stderr, on one line.
func Main(args []string) int { return cli.Execute(newRoot(), forBench(args)) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "nvmecr",
		Short: "Checkpoint storage of its own for every rank of an MPI job",
		Long: `nvmecr gives every rank of an unmodified MPI application a private file system
on its slice of an NVMe-over-Fabrics namespace. What the application writes
under the mount (/nvmecr) survives the death of the job; a run of the same
name finds it again.`,
		Example: `  nvmecr run -- mpirun -n 4 ./app            # checkpoints go under /nvmecr
  nvmecr ls                                  # what each rank holds
  nvmecr cp --rank 0 /state.42 ./state.42    # copy a file out`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cli.Prepare(root)
	root.Version = versionText()
	root.SetVersionTemplate("{{.Version}}")
	root.AddCommand(
		newRun(), newServe(), newTarget(), newAdmin(), newKeygen(),
		newLs(), newLatest(), newCheckpoints(), newDrain(), newRestore(), newAdvise(), newCat(), newMount(), newCp(), newStat(), newStores(), newFsck(), newVerify(), newRelease(),
		newHostNQN(), newDiscover(), newCheck(), newPlan(), newSlurm(), newDemo(), newBench(), newVersion(),
	)
	return root
}
