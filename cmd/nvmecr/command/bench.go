package command

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/internal/installed"
)

// benchProgram is the program that this one becomes for `nvmecr bench`.
const benchProgram = "nvmecr-bench"

func newBench() *cobra.Command {
	return &cobra.Command{
		Use:     "bench",
		Short:   "Measure this machine or cluster, beside its peers",
		Example: "  nvmecr bench --help",
		// They are the other program's, --help too.
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return becomeBench(args) },
	}
}

// forBench returns args with which the other program says of `bench` what the shell's
// completion and `nvmecr help` ask of this one; other args it returns as they are.
func forBench(args []string) []string {
	if len(args) < 2 || args[1] != "bench" {
		return args
	}
	switch args[0] {
	case cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd:
		if len(args) == 2 { // the word "bench" itself is being completed
			return args
		}
	case "help":
	default:
		return args
	}
	return append([]string{"bench", args[0]}, args[2:]...)
}

// becomeBench executes the program of the benchmark in the place of this one. It
// returns only if that fails.
func becomeBench(args []string) error {
	path, err := installed.Find(benchProgram)
	if err != nil {
		return fmt.Errorf("bench is a program of its own: %w", err)
	}
	if err := syscall.Exec(path, append([]string{path}, args...), os.Environ()); err != nil {
		return fmt.Errorf("bench is a program of its own: %s: %w", path, err)
	}
	return nil
}
