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
			_, err := fmt.Fprint(cmd.OutOrStdout(), versionText())
			return err
		},
	}
}

// versionText is what the command and --version print.
func versionText() string {
	return fmt.Sprintf("nvmecr %s %s\ndrivers: %s\n", version(), runtime.Version(), strings.Join(dial.Drivers(), ", "))
}

// release is the version that this is, or becomes.
const release = "v0.9.0-dev"

// commit is what the build says it was built from.
var commit string

// version is the module's where the go command has installed it, else the release and the commit it was built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	if commit != "" {
		return release + "+" + commit
	}
	return release
}
