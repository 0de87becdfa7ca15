package cli

import "runtime/debug"

// release is the version of this source tree.
const release = "v0.9.0-dev"

// commit is the commit that was built, set by the linker.
var commit string

// Version is the version of the module if the go command has installed it, otherwise the release and the commit.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	if commit != "" {
		return release + "+" + commit
	}
	return release
}
