package command

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/nvmf/dial"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version, and the drivers that are built in",
		Example: "  nvmecr version",
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), versionText())
			return err
		},
	}
}

// versionText returns the output of the command and of --version.
func versionText() string {
	return fmt.Sprintf("nvmecr %s %s\ndrivers: %s\n", cli.Version(), runtime.Version(), strings.Join(dial.Drivers(), ", "))
}
