// Package spdklib lets tests start SPDK's programs, of which those of a build tree do not know
// where their libraries are.
package spdklib

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Variable is where the dynamic linker looks first.
const Variable = "LD_LIBRARY_PATH"

// Path is the value of Variable with which SPDK's programs find their libraries: where pkg-config
// finds them, and what is there already. root is the directory of this module. Without SPDK, or where
// it is the system's, it is what is there already.
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
