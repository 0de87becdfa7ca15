package cli

import "runtime/debug"

// release is the version that this is, or becomes.
const release = "v0.9.0-dev"

// commit is what the build says it was built from.
var commit string

// Version is the module's where the go command has installed it, else the release and the commit it was built from.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	if commit != "" {
		return release + "+" + commit
	}
	return release
}
