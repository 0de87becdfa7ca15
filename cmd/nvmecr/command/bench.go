package command

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/internal/installed"
)

// benchProgram is the program that `nvmecr bench` executes.
const benchProgram = "nvmecr-bench"

func newBench() *cobra.Command {
	return &cobra.Command{
		Use:     "bench",
		Short:   "Measure this machine or cluster, and compare it with other storage",
		Example: "  nvmecr bench --help",
		// Flags, --help included, are for benchProgram.
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return execBench(args) },
	}
}

// benchArgs rewrites requests about `bench` (shell completion, `nvmecr help bench`) into arguments of `nvmecr bench`,
// which benchProgram answers. Other args are returned unchanged.
func benchArgs(args []string) []string {
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

// execBench replaces this process by the benchmark program. It returns only if that fails.
func execBench(args []string) error {
	path, err := installed.Find(benchProgram)
	if err != nil {
		return fmt.Errorf("bench is a separate program: %w", err)
	}
	if err := syscall.Exec(path, append([]string{path}, args...), os.Environ()); err != nil {
		return fmt.Errorf("bench is a separate program: %s: %w", path, err)
	}
	return nil
}
