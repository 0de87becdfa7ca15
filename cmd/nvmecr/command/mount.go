package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"nvmecr/internal/cli"
	"nvmecr/internal/store"
)

// checkMount refuses a mount that would hide what the job cannot do without:
// under the mount its processes see their partition and nothing else.
func (o *runOptions) checkMount(program, library string) error {
	for _, system := range []string{"/proc", "/sys", "/dev"} {
		if below(o.cfg.Mount, system) {
			return cli.UsageError{Err: fmt.Errorf("--mount %s: %s is the system's; choose a path of its own such as /nvmecr", o.cfg.Mount, system)}
		}
	}
	state, err := store.FindStateDir(o.cfg.Name)
	if err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "/" // removed: nothing can hide it
	}
	for _, p := range []struct{ what, path string }{
		{"the working directory", cwd},
		{"the store's directory", state.Path},
		{"the directory of temporary files (TMPDIR)", os.TempDir()},
		{"the program", program},
		{"the runtime", library},
	} {
		real, err := filepath.EvalSymlinks(p.path)
		if err != nil {
			real = p.path
		}
		if below(p.path, o.cfg.Mount) || below(real, o.cfg.Mount) {
			return cli.UsageError{Err: fmt.Errorf("--mount %s would hide %s, %s; choose a path of its own such as /nvmecr", o.cfg.Mount, p.what, p.path)}
		}
	}
	return nil
}

// below reports whether path is dir or in it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
