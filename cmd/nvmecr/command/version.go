package command

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"nvmecr/nvmf/dial"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version, and the drivers that are built in",
		Example: "  nvmecr version",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "nvmecr %s %s\ndrivers: %s\n", version(), runtime.Version(),
				strings.Join(dial.Drivers(), ", "))
			return err
		},
	}
}

// commit is what the build says it was built from.
var commit string

// version is the module's, or the commit it was built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	if commit != "" {
		return commit
	}
	return "unreleased"
}
