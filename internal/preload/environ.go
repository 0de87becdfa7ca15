// Package preload returns the environment in which a job's processes load the preload library and find their settings, on this host and
// on others.
package preload

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"nvmecr/internal/config"
	"nvmecr/internal/installed"
	"nvmecr/nvmf"
)

// library is the file name of the preload library.
const library = "libnvmecr.so"

// ompiEnvList is the variable with the names of variables that OpenMPI's mpirun passes to other hosts, separated by ';'. Their values
// are those of mpirun's environment.
const ompiEnvList = "OMPI_MCA_mca_base_env_list"

// Of the components that Open MPI's OMPIO has for collective I/O, vulcan reads and writes the bytes between those of its rank without a lock. With
// several aggregators (cb_nodes) these are bytes that another aggregator writes in the same call: vulcan loses some of them now and then on local file
// systems, and mostly in one tree. The other components do not. mpirun passes OMPI variables to other hosts.
const (
	ompiCollective = "OMPI_MCA_fcoll"
	notVulcan      = "^vulcan"
)

// Library returns the path of the preload library, which package installed finds. A path that LD_PRELOAD cannot contain is an error.
func Library() (string, error) {
	path, err := installed.Find(library)
	// The dynamic linker splits LD_PRELOAD at colons and spaces, without quoting.
	if err == nil && strings.ContainsAny(path, ": ") {
		err = fmt.Errorf("%s cannot be preloaded from a path with a colon or a space: move it", path)
	}
	return path, err
}

// Environ returns base with the preload library and the settings of cfg, which replace those in base. It excludes a component of Open MPI that
// loses bytes, unless base chooses the component.
func Environ(cfg *config.Config, base []string, library string) []string {
	env := cfg.Environ(base)
	preload := lookup(env, "LD_PRELOAD")
	switch {
	case preload == "":
		preload = library
	case !slices.Contains(strings.FieldsFunc(preload, preloadSeparator), library):
		preload = library + ":" + preload
	}
	if lookup(env, ompiCollective) == "" {
		env = set(env, ompiCollective, notVulcan)
	}
	return set(env, "LD_PRELOAD", preload)
}

// Propagate makes OpenMPI's mpirun pass the preload and the settings to other hosts; Hydra of MPICH and srun pass all variables by
// default. The names go into a variable, so that this also works for an mpirun inside a script. mpirun refuses that variable together
// with options -x: if the job has such options, the names become options, too. Targets that only this host can reach need none of this.
func Propagate(cfg *config.Config, argv, env []string) ([]string, []string) {
	if !slices.ContainsFunc(cfg.Targets, Remote) {
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
	if old := lookup(env, ompiEnvList); old != "" { // may be set by an enclosing nvmecr run
		had := strings.Split(old, ";")
		names = append(had, slices.DeleteFunc(names, func(n string) bool { return slices.Contains(had, n) })...)
	}
	return argv, set(env, ompiEnvList, strings.Join(names, ";"))
}

// isOpenMPI reports whether a program is OpenMPI's launcher, under any name.
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

// Remote reports whether other hosts can reach the namespace.
func Remote(t nvmf.TransportID) bool {
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

// set returns env with name=value, which replaces another value.
func set(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		n, _, _ := strings.Cut(kv, "=")
		return n == name
	})
	return append(env, name+"="+value)
}
