// Package fakeconfigfs is a fake configfs of nvmet, for tests of provisioning. Creating
// a directory creates its attributes, and removing it removes them. The target of a
// link cannot be removed. Attributes refuse the values that the kernel refuses. Connect
// returns the namespace that a host would see.
package fakeconfigfs

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
)

// A Tree is one target. It is not safe for concurrent use.
type Tree struct {
	root string
	// cuts counts, by subsystem, the events that disconnect its hosts.
	cuts map[string]int
}

// New returns a target without subsystems and ports, in an empty directory.
func New(root string) (*Tree, error) {
	t := &Tree{root: root, cuts: map[string]int{}}
	return t, t.Reboot()
}

// Reboot removes all configuration.
func (t *Tree) Reboot() error {
	var errs []error
	for _, dir := range []string{"subsystems", "ports", "hosts"} {
		errs = append(errs, os.RemoveAll(t.at(dir)), os.Mkdir(t.at(dir), 0o755))
	}
	for nqn := range t.cuts {
		t.cuts[nqn]++
	}
	return errors.Join(errs...)
}

func (t *Tree) at(name string) string { return filepath.Join(t.root, name) }

// List lists a directory.
func (t *Tree) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(t.at(dir))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Read reads an attribute.
func (t *Tree) Read(name string) (string, error) {
	b, err := os.ReadFile(t.at(name))
	return strings.TrimRight(string(b), "\n"), err
}

// The directories that can be created, and the entries that appear in them.
var kinds = []struct {
	path  *regexp.Regexp
	attrs map[string]string
	dirs  []string
}{
	{regexp.MustCompile(`^hosts/[^/]+$`), map[string]string{"dhchap_key": "", "dhchap_ctrl_key": ""}, nil},
	{regexp.MustCompile(`^subsystems/[^/]+$`),
		map[string]string{"attr_allow_any_host": "0", "attr_serial": "e2a5d6f1", "attr_model": "Linux"}, []string{"namespaces", "allowed_hosts"}},
	{regexp.MustCompile(`^subsystems/[^/]+/namespaces/[1-9][0-9]*$`),
		map[string]string{"device_path": "(null)", "device_uuid": "", "enable": "0", "buffered_io": "0"}, nil},
	{regexp.MustCompile(`^ports/[0-9]{1,5}$`),
		map[string]string{"addr_trtype": "", "addr_adrfam": "", "addr_traddr": "", "addr_trsvcid": ""}, []string{"subsystems", "referrals"}},
}

// Mkdir creates an item with its attributes.
func (t *Tree) Mkdir(name string) error {
	for _, k := range kinds {
		if !k.path.MatchString(name) {
			continue
		}
		if err := os.Mkdir(t.at(name), 0o755); err != nil {
			return err
		}
		var errs []error
		for attr, v := range k.attrs {
			if attr == "device_uuid" {
				v = uuid.NewString()
			}
			errs = append(errs, os.WriteFile(t.at(name+"/"+attr), []byte(v+"\n"), 0o644))
		}
		for _, d := range k.dirs {
			errs = append(errs, os.Mkdir(t.at(name+"/"+d), 0o755))
		}
		return errors.Join(errs...)
	}
	return fail("mkdir", name, unix.EPERM)
}

func fail(op, name string, err error) error { return &os.PathError{Op: op, Path: name, Err: err} }

// Rmdir removes an empty item to which no link points.
func (t *Tree) Rmdir(name string) error {
	known := false
	for _, k := range kinds {
		if !k.path.MatchString(name) {
			continue
		}
		known = true
		for _, d := range k.dirs {
			if in, _ := t.List(name + "/" + d); len(in) > 0 {
				return fail("rmdir", name, unix.ENOTEMPTY)
			}
		}
	}
	links, err := filepath.Glob(t.at("*/*/*/*"))
	if err != nil || !known {
		return errors.Join(err, fail("rmdir", name, unix.EPERM))
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == t.at(name) {
			return fail("rmdir", name, unix.EBUSY)
		}
	}
	if _, err := os.Stat(t.at(name)); err != nil {
		return err
	}
	t.cut(name)
	return os.RemoveAll(t.at(name))
}

// cut disconnects the hosts of the subsystem in a path.
func (t *Tree) cut(name string) { t.cuts[strings.Split(name, "/")[1]]++ }

// Hide makes an attribute readable only by its owner.
func (t *Tree) Hide(name string) error { return os.Chmod(t.at(name), 0o600) }

// Write sets an attribute.
func (t *Tree) Write(name, value string) error {
	if _, err := os.Lstat(t.at(name)); err != nil {
		return err
	}
	dir, attr := filepath.Split(name)
	on, _ := t.Read(dir + "enable")
	switch attr {
	case "dhchap_key", "dhchap_ctrl_key":
		if _, err := dhchap.ParseSecret(value); err != nil {
			return fail("write", name, unix.EINVAL)
		}
	case "device_path", "device_uuid":
		if on == "1" {
			return fail("write", name, unix.EBUSY)
		}
	case "enable":
		path, _ := t.Read(dir + "device_path")
		if _, err := os.Stat(path); value == "1" && err != nil {
			return fail("write", name, unix.ENOENT)
		}
		if value == "0" {
			t.cut(name)
		}
	case "attr_allow_any_host":
		if hosts, _ := t.List(dir + "allowed_hosts"); value == "1" && len(hosts) > 0 {
			return fail("write", name, unix.EINVAL)
		}
	case "addr_traddr", "addr_trsvcid", "addr_trtype", "addr_adrfam":
		if in, _ := t.List(dir + "subsystems"); len(in) > 0 {
			return fail("write", name, unix.EACCES)
		}
	default:
		return fail("write", name, unix.EINVAL)
	}
	return os.WriteFile(t.at(name), []byte(value+"\n"), 0o644)
}

var (
	hostLink = regexp.MustCompile(`^subsystems/[^/]+/allowed_hosts/[^/]+$`)
	portLink = regexp.MustCompile(`^ports/[^/]+/subsystems/[^/]+$`)
)

// Link adds a host to a subsystem's list, or links a subsystem into a port.
func (t *Tree) Link(to, name string) error {
	if _, err := os.Stat(t.at(to)); err != nil {
		return err
	}
	dir := filepath.Dir(filepath.Dir(name))
	switch {
	case hostLink.MatchString(name) && strings.HasPrefix(to, "hosts/"):
		if any, _ := t.Read(dir + "/attr_allow_any_host"); any != "0" {
			return fail("symlink", name, unix.EINVAL)
		}
	case portLink.MatchString(name) && strings.HasPrefix(to, "subsystems/"):
		for _, attr := range []string{"trtype", "adrfam", "traddr", "trsvcid"} {
			if v, _ := t.Read(dir + "/addr_" + attr); v == "" {
				return fail("symlink", name, unix.EINVAL)
			}
		}
	default:
		return fail("symlink", name, unix.EPERM)
	}
	return os.Symlink(t.at(to), t.at(name))
}

// Unlink reverts a Link. Unlinking a subsystem from a port disconnects its hosts. A
// host that is removed from the list stays connected.
func (t *Tree) Unlink(name string) error {
	if _, err := os.Readlink(t.at(name)); err != nil {
		return err
	}
	if portLink.MatchString(name) {
		t.cuts[filepath.Base(name)]++
	}
	return os.Remove(t.at(name))
}

// A Namespace is the file of a namespace, as a connected host sees it.
type Namespace struct {
	*os.File
	t    *Tree
	nqn  string
	cuts int
}

// Connect connects a host.
func (t *Tree) Connect(id nvmf.TransportID, host string, keys dhchap.Keys) (*Namespace, error) {
	ports, err := t.List("ports")
	if err != nil {
		return nil, err
	}
	listens := false
	for _, port := range ports {
		in, _ := t.List("ports/" + port + "/subsystems")
		listens = listens || len(in) > 0
		address, _ := t.Read("ports/" + port + "/addr_traddr")
		service, _ := t.Read("ports/" + port + "/addr_trsvcid")
		if _, err := os.Stat(t.at("ports/" + port + "/subsystems/" + id.SubNQN)); err == nil && address == id.Address && service == id.Service {
			return t.connect(id.SubNQN, host, keys)
		}
	}
	if !listens {
		return nil, nvmf.ErrUnreachable // a port listens only while a subsystem is linked into it
	}
	return nil, nvmf.ErrNoSubsystem
}

func (t *Tree) connect(nqn, host string, keys dhchap.Keys) (*Namespace, error) {
	sub := "subsystems/" + nqn
	_, err := os.Stat(t.at(sub + "/allowed_hosts/" + host))
	if anyone, _ := t.Read(sub + "/attr_allow_any_host"); anyone != "1" && err != nil {
		return nil, nvmf.ErrHostRefused
	}
	if err := t.authenticate(host, keys); err != nil {
		return nil, err
	}
	path, _ := t.Read(sub + "/namespaces/1/device_path")
	if on, _ := t.Read(sub + "/namespaces/1/enable"); on != "1" {
		return nil, nvmf.ErrNoNamespace
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &Namespace{f, t, nqn, t.cuts[nqn]}, nil
}

// authenticate compares the keys of a host with those in configfs.
func (t *Tree) authenticate(host string, keys dhchap.Keys) error {
	for attr, secret := range map[string]dhchap.Secret{"dhchap_key": keys.Host, "dhchap_ctrl_key": keys.Controller} {
		want, _ := t.Read("hosts/" + host + "/" + attr)
		info, err := os.Stat(t.at("hosts/" + host + "/" + attr))
		switch {
		case err != nil:
			return err
		case want == "" && secret.IsZero() || want != "" && secret.IsZero() && attr == "dhchap_ctrl_key":
		case want == "" || secret.IsZero() || want != secret.Reveal() || info.Mode().Perm() != 0o600:
			return nvmf.ErrAuthentication
		}
	}
	return nil
}

// Size returns the size of the namespace.
func (n *Namespace) Size() nvmf.Bytes {
	end, _ := n.Seek(0, 2) // the file is open
	return nvmf.Bytes(end)
}

// ReadAt reads. It fails if the host was disconnected.
func (n *Namespace) ReadAt(p []byte, offset int64) (int, error) {
	if n.cuts != n.t.cuts[n.nqn] {
		return 0, nvmf.ErrConnectionLost
	}
	return n.File.ReadAt(p, offset)
}

// WriteAt writes. It fails if the host was disconnected.
func (n *Namespace) WriteAt(p []byte, offset int64) (int, error) {
	if n.cuts != n.t.cuts[n.nqn] {
		return 0, nvmf.ErrConnectionLost
	}
	return n.File.WriteAt(p, offset)
}
