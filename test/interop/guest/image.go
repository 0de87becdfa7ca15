package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"nvmecr/test/interop/guest/wire"
)

// always are the modules of every guest: for its console, its network, and checksums that other modules request by name.
var always = []string{"virtio_pci", "virtio_net", "virtio_console", "virtio_rng", "configfs", "crc32c_generic", "crc32_generic"}

// writeImage writes the initial file system of a guest.
func writeImage(ctx context.Context, file string, o Options) (err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	a := newArchive(f)
	for _, dir := range []string{"/proc", "/sys", "/dev", "/tmp", "/run", "/mnt", "/etc", "/busybox", "/var/tmp"} {
		a.add(dir, kindDirectory|0o755, 0, nil)
	}
	// The first process needs it before it mounts anything.
	a.add("/dev/console", kindDevice|0o600, 5<<8|1, nil)
	a.add("/bin/sh", kindLink|0o777, 0, []byte("busybox"))
	if err := addAgent(ctx, a, filepath.Dir(file)); err != nil {
		return err
	}
	if err := addModules(a, o); err != nil {
		return err
	}
	if err := addFiles(a, o); err != nil {
		return err
	}
	return a.close()
}

// addAgent builds the first process.
func addAgent(ctx context.Context, a *archive, dir string) error {
	program := filepath.Join(dir, "init")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, "nvmecr/test/interop/guest/agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the agent: %w: %s", err, out)
	}
	return a.copy("/init", program)
}

func addModules(a *archive, o Options) error {
	m, err := o.Kernel.modules()
	if err != nil {
		return err
	}
	all, err := m.order(append(append([]string{}, always...), o.Modules...))
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, mod := range all {
		content, err := m.read(mod.path)
		if err != nil {
			return fmt.Errorf("module %s: %w", mod.path, err)
		}
		to := path.Join("/lib/modules", o.Kernel.Version, strings.TrimSuffix(strings.TrimSuffix(mod.path, ".xz"), ".zst"))
		a.add(to, kindFile|0o644, 0, content)
		fmt.Fprintln(&list, to, mod.parameters)
	}
	a.add(wire.ModuleList, kindFile|0o644, 0, []byte(list.String()))
	return nil
}

func addFiles(a *archive, o Options) error {
	for _, name := range append([]string{"busybox"}, o.Programs...) {
		program := Find(name)
		if program == "" {
			return fmt.Errorf("%s is not installed", name)
		}
		to := program
		if name == "busybox" {
			to = "/bin/busybox"
		}
		if err := a.copy(to, program); err != nil {
			return err
		}
	}
	for to, from := range o.Files {
		if err := a.copy(to, from); err != nil {
			return err
		}
	}
	return nil
}

// Find returns the path of a program, also in root's directories; "" if it is not installed.
func Find(name string) string {
	for _, dir := range []string{"", "/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			if p, err = filepath.Abs(p); err == nil {
				return p
			}
		}
	}
	return ""
}
