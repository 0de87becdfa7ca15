// Package spdklib lets tests start SPDK's programs. Programs in a build tree do not know the path of their libraries.
package spdklib

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Variable names the first search path of the dynamic linker.
const Variable = "LD_LIBRARY_PATH"

// Path returns the value of Variable for SPDK's programs: the present value, preceded by the directory of pkg-config. root is the
// directory of this module. Without SPDK, or with the system's SPDK, it is the present value.
func Path(root string) string {
	flags, _ := exec.Command(filepath.Join(root, "scripts/spdk-rpath.sh")).Output() // fails without SPDK
	var dirs []string
	for _, flag := range strings.Fields(string(flags)) {
		dirs = append(dirs, strings.TrimPrefix(flag, "-Wl,-rpath,"))
	}
	if own := os.Getenv(Variable); own != "" {
		dirs = append(dirs, own)
	}
	return strings.Join(dirs, ":")
}
