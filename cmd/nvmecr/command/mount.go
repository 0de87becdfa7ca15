package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
)

// checkMounts refuses a mount point that would hide files the job needs: processes see only the files of the store
// below it.
func (o *runOptions) checkMounts(program, library string) error {
	all := o.cfg.MountAll
	if all == "" {
		return o.checkMount("--mount "+o.cfg.Mount, o.cfg.Mount, program, library)
	}
	if o.cfg.View == config.ViewJob {
		return cli.UsageError{Err: fmt.Errorf("--mount-all %s: with --view=job all files are under --mount %s; leave --mount-all out", all, o.cfg.Mount)}
	}
	if below(all, o.cfg.Mount) || below(o.cfg.Mount, all) {
		return cli.UsageError{Err: fmt.Errorf("--mount-all %s and --mount %s are one in the other; choose a path of its own such as /nvmecr.all", all, o.cfg.Mount)}
	}
	if err := o.checkMount("--mount-all "+all, all, program, library); err != nil {
		return err
	}
	return o.checkMount("--mount "+o.cfg.Mount, o.cfg.Mount, program, library)
}

func (o *runOptions) checkMount(flag, mount, program, library string) error {
	for _, system := range []string{"/proc", "/sys", "/dev"} {
		if below(mount, system) {
			return cli.UsageError{Err: fmt.Errorf("%s: %s is the system's; choose a path of its own such as /nvmecr", flag, system)}
		}
	}
	state, err := store.FindStateDir(o.cfg.Name)
	if err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "/" // the working directory was removed
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
		if below(p.path, mount) || below(real, mount) {
			return cli.UsageError{Err: fmt.Errorf("%s would hide %s, %s; choose a path of its own such as /nvmecr", flag, p.what, p.path)}
		}
	}
	return nil
}

// below reports whether path is dir or in it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
