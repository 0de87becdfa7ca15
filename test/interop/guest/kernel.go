package guest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A Kernel is an unpacked kernel: boot/vmlinuz-VERSION, boot/config-VERSION and lib/modules/VERSION below a directory.
type Kernel struct {
	Name    string // name of the directory
	Version string
	root    string
}

// Kernels returns the kernels in the directories below dir; none if it does not exist.
func Kernels(dir string) ([]Kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "*", "boot", "vmlinuz-*"))
	var all []Kernel
	for _, image := range images {
		root := filepath.Dir(filepath.Dir(image))
		all = append(all, Kernel{Name: filepath.Base(root), Version: strings.TrimPrefix(filepath.Base(image), "vmlinuz-"), root: root})
	}
	return all, err
}

// Has reports whether the kernel was built with CONFIG_option, built in or as a module.
func (k Kernel) Has(option string) bool {
	text, err := os.ReadFile(filepath.Join(k.root, "boot", "config-"+k.Version))
	if err != nil {
		return false
	}
	for _, line := range strings.Split(string(text), "\n") {
		if value, ok := strings.CutPrefix(line, "CONFIG_"+option+"="); ok {
			return value == "y" || value == "m"
		}
	}
	return false
}

func (k Kernel) image() string { return filepath.Join(k.root, "boot", "vmlinuz-"+k.Version) }

// modules are the modules that a kernel can load.
type modules struct {
	dir     string
	needs   map[string][]string // by path below dir: dependencies, to be loaded in reverse order
	paths   map[string]string   // by name
	builtin map[string]bool
}

func (k Kernel) modules() (*modules, error) {
	m := &modules{dir: filepath.Join(k.root, "lib", "modules", k.Version),
		needs: map[string][]string{}, paths: map[string]string{}, builtin: map[string]bool{}}
	return m, errors.Join(
		eachLine(filepath.Join(m.dir, "modules.dep"), func(line string) {
			path, needs, _ := strings.Cut(line, ":")
			m.needs[path], m.paths[moduleName(path)] = strings.Fields(needs), path
		}),
		eachLine(filepath.Join(m.dir, "modules.builtin"), func(line string) { m.builtin[moduleName(line)] = true }))
}

func eachLine(path string, do func(string)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		do(in.Text())
	}
	return in.Err()
}

// moduleName returns the kernel's name of the module in a file.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	return strings.ReplaceAll(name, "-", "_")
}

// A module is a module to load.
type module struct{ path, parameters string }

// order returns the modules to load for wanted, each NAME [PARAMETERS], in the required order.
func (m *modules) order(wanted []string) ([]module, error) {
	var all []module
	add := func(path, parameters string) {
		if !slices.ContainsFunc(all, func(o module) bool { return o.path == path }) {
			all = append(all, module{path, parameters})
		}
	}
	for _, w := range wanted {
		name, parameters, _ := strings.Cut(w, " ")
		name = moduleName(name)
		path, ok := m.paths[name]
		if !ok {
			if m.builtin[name] {
				continue
			}
			return nil, fmt.Errorf("the kernel in %s has no module %s", m.dir, name)
		}
		for _, needed := range slices.Backward(m.needs[path]) {
			add(needed, "")
		}
		add(path, parameters)
	}
	return all, nil
}

// read returns the uncompressed content of a module.
func (m *modules) read(path string) ([]byte, error) {
	path = filepath.Join(m.dir, path)
	switch filepath.Ext(path) {
	case ".xz":
		return exec.Command("xz", "-dc", path).Output()
	case ".zst":
		return exec.Command("zstd", "-dc", path).Output()
	}
	return os.ReadFile(path)
}
