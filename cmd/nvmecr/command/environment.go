package command

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"nvmecr/internal/config"
	"nvmecr/nvmf"
)

// preloadLibrary is what LD_PRELOAD names.
const preloadLibrary = "libnvmecr.so"

// ompiEnvList names the variables OpenMPI's mpirun carries to other hosts,
// separated by ';'. Names alone take their values from mpirun's environment.
const ompiEnvList = "OMPI_MCA_mca_base_env_list"

// findLibrary looks for the preload library beside the program, as the build
// leaves it, and where an installation puts it.
func findLibrary() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", err
	}
	bin := filepath.Dir(self)
	for _, dir := range []string{bin, filepath.Join(bin, "../lib"), filepath.Join(bin, "../lib/nvmecr")} {
		path := filepath.Join(dir, preloadLibrary)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		// The dynamic linker splits LD_PRELOAD at both and knows no quoting.
		if strings.ContainsAny(path, ": ") {
			return "", fmt.Errorf("%s cannot be preloaded from a path with a colon or a space: move it", path)
		}
		return path, nil
	}
	return "", fmt.Errorf("%s is not beside %s: run make, or reinstall", preloadLibrary, self)
}

// environment is what the job gets: ours with the preload and the settings.
func environment(cfg *config.Config, base []string, library string) []string {
	env := cfg.Environ(base)
	preload := lookup(env, "LD_PRELOAD")
	switch {
	case preload == "":
		preload = library
	case !slices.Contains(strings.FieldsFunc(preload, preloadSeparator), library):
		preload = library + ":" + preload
	}
	return set(env, "LD_PRELOAD", preload)
}

// carry makes OpenMPI's mpirun take the preload and the settings to other
// hosts; MPICH's Hydra and srun take everything unless told otherwise. Names
// go into a variable, so that it also works for an mpirun inside a script.
// mpirun refuses that variable together with options -x: where the job has
// any, the names become options too. Targets that only this host can reach
// need none of it.
func carry(cfg *config.Config, argv, env []string) ([]string, []string) {
	if !slices.ContainsFunc(cfg.Targets, remote) {
		return argv, env
	}
	names := []string{"LD_PRELOAD"}
	for _, kv := range cfg.Exports() {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	if slices.Contains(argv, "-x") && isOpenMPI(argv[0]) {
		with := []string{argv[0]}
		for _, n := range names {
			with = append(with, "-x", n)
		}
		return append(with, argv[1:]...), env
	}
	if old := lookup(env, ompiEnvList); old != "" {
		names = append([]string{old}, names...)
	}
	return argv, set(env, ompiEnvList, strings.Join(names, ";"))
}

// isOpenMPI reports whether a program is OpenMPI's launcher, whatever the name
// it is called by.
func isOpenMPI(program string) bool {
	path, err := exec.LookPath(program)
	if err != nil {
		return false
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return false
	}
	return slices.Contains([]string{"orterun", "prterun", "prte"}, filepath.Base(path))
}

func preloadSeparator(r rune) bool { return r == ':' || r == ' ' }

// remote reports whether other hosts can reach the namespace.
func remote(t nvmf.TransportID) bool {
	switch t.Transport {
	case nvmf.File, nvmf.Mem, nvmf.PCIe:
		return false
	}
	ip := net.ParseIP(t.Address)
	return ip == nil || !ip.IsLoopback()
}

func lookup(env []string, name string) string {
	for _, kv := range env {
		if n, v, _ := strings.Cut(kv, "="); n == name {
			return v
		}
	}
	return ""
}

// set returns env with name=value in the place of any other value.
func set(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		n, _, _ := strings.Cut(kv, "=")
		return n == name
	})
	return append(env, name+"="+value)
}

func joinTargets(targets []nvmf.TransportID) string {
	var s []string
	for _, t := range targets {
		s = append(s, t.String())
	}
	return strings.Join(s, ", ")
}
