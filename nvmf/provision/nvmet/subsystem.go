package nvmet

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
)

func subsystem(nqn string) string       { return "subsystems/" + nqn }
func allowedHosts(nqn string) string    { return subsystem(nqn) + "/allowed_hosts" }
func namespaces(nqn string) string      { return subsystem(nqn) + "/namespaces" }
func portLink(port, nqn string) string  { return "ports/" + port + "/subsystems/" + nqn }
func portAttr(port, name string) string { return "ports/" + port + "/addr_" + name }

// has reports whether a directory has an entry.
func (p *Provisioner) has(dir, name string) (bool, error) {
	names, err := p.tree.List(dir)
	return slices.Contains(names, name), err
}

// ensureDir creates dir/name if it does not exist. Another program may create it at the
// same time, since jobs share ports.
func (p *Provisioner) ensureDir(dir, name string) error {
	there, err := p.has(dir, name)
	if err != nil || there {
		return err
	}
	err = p.wrap(func() error { return p.tree.Mkdir(dir + "/" + name) })
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// ensure sets an attribute, unless it has the value already.
func (p *Provisioner) ensure(name, value string) error {
	have, err := p.tree.Read(name)
	if err != nil || have == value {
		return err
	}
	err = p.wrap(func() error { return p.tree.Write(name, value) })
	if have, e := p.tree.Read(name); err != nil && e == nil && have == value {
		return nil // another program has set it, and an attribute in use cannot be written
	}
	return err
}

// enabled reports whether the target serves a job's image and admits only listed hosts.
func (p *Provisioner) enabled(job string) bool {
	nqn := provision.NQN(p.o.Base, job)
	path, err1 := p.tree.Read(namespaces(nqn) + "/1/device_path")
	on, err2 := p.tree.Read(namespaces(nqn) + "/1/enable")
	anyone, err3 := p.tree.Read(subsystem(nqn) + "/attr_allow_any_host")
	return errors.Join(err1, err2, err3) == nil && path == p.image(liveName, job) && on == "1" && anyone == "0"
}

// strange returns an error if the target serves a job differently than this package
// would with these options. The job may have been created with another directory, or
// with another prefix of NQNs.
func (p *Provisioner) strange(job string) error {
	subsystems, err := p.tree.List("subsystems")
	for _, nqn := range subsystems {
		ids, e := p.tree.List(namespaces(nqn))
		if errors.Is(e, fs.ErrNotExist) {
			continue // the subsystem was removed meanwhile
		}
		err = errors.Join(err, e)
		for _, id := range ids {
			path, e := p.tree.Read(namespaces(nqn) + "/" + id + "/device_path")
			switch ours, here := nqn == provision.NQN(p.o.Base, job), p.within(path); {
			case errors.Is(e, fs.ErrNotExist):
			case e != nil:
				err = errors.Join(err, e)
			case ours && !here:
				return fmt.Errorf("job %s: %w: %s serves %s, which is not in %s: name that directory with ?dir=, or give the job another name, or &nqn=PREFIX for each directory",
					job, provision.ErrInvalid, nqn, path, p.o.Dir)
			case !ours && here && filepath.Base(path) == liveName+job:
				return fmt.Errorf("job %s: %w: %s is served as %s: give the &nqn=PREFIX that it was created with, or another name",
					job, provision.ErrInvalid, path, nqn)
			}
		}
	}
	return err
}

// within reports whether a path is in the directory of images, by any name. It returns
// true for an empty path, and for a path whose directory does not exist any more.
func (p *Provisioner) within(path string) bool {
	theirs, err := os.Stat(filepath.Dir(path))
	if !filepath.IsAbs(path) || err != nil {
		return true
	}
	ours, err := os.Stat(p.o.Dir)
	return err == nil && os.SameFile(ours, theirs)
}

// serve creates the missing parts of a job's subsystem. It admits no host.
func (p *Provisioner) serve(job string) error {
	nqn := provision.NQN(p.o.Base, job)
	port, err := p.choosePort()
	if err == nil {
		err = p.ensureDir("subsystems", nqn)
	}
	if err == nil {
		err = p.ensure(subsystem(nqn)+"/attr_allow_any_host", "0")
	}
	if err == nil && !p.enabled(job) {
		err = p.enable(job, nqn)
	}
	if err == nil {
		err = p.ensureLink(port, nqn)
	}
	return err
}

// enable creates and enables the namespace. Its path and UUID can be set only while it
// is disabled.
func (p *Provisioner) enable(job, nqn string) error {
	id, err := p.imageUUID(job)
	if err == nil {
		err = p.ensureDir(namespaces(nqn), "1")
	}
	ns := namespaces(nqn) + "/1/"
	for _, a := range []struct{ name, value string }{
		{"enable", "0"}, {"device_path", p.image(liveName, job)}, {"device_uuid", id.String()}, {"enable", "1"},
	} {
		if err == nil {
			err = p.ensure(ns+a.name, a.value)
		}
	}
	return err
}

// ensureLink links a subsystem into a port.
func (p *Provisioner) ensureLink(port, nqn string) error {
	there, err := p.has("ports/"+port+"/subsystems", nqn)
	if err != nil || there {
		return err
	}
	err = p.wrap(func() error { return p.tree.Link(subsystem(nqn), portLink(port, nqn)) })
	if err != nil {
		id, _ := p.portAddress(port)
		err = fmt.Errorf("the target cannot listen at %s (port %s): is nvmet-tcp loaded, has this machine the address, and is it free?: %w", id.HostPort(), port, err)
	}
	return err
}

// choosePort returns the port to use, and creates it if it does not exist. The number
// of a new port is derived from its address, so that a repeated Create finds the port
// of an interrupted one.
func (p *Provisioner) choosePort() (string, error) {
	ports, err := p.tree.List("ports")
	if err != nil {
		return "", err
	}
	l := p.o.Listen
	if l == nil {
		if len(ports) == 1 {
			return ports[0], nil
		}
		return "", fmt.Errorf("%w: the target has %d ports: say which with ?listen=ADDRESS:PORT; it is made if there is none", provision.ErrInvalid, len(ports))
	}
	for _, port := range ports {
		id, err := p.portAddress(port)
		if err == nil && id.Address == l.Address && id.Service == l.Service && id.Family == l.Family {
			return port, nil
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(l.HostPort())) // cannot fail
	port := strconv.Itoa(int(1000 + h.Sum32()%60000))
	if id, err := p.portAddress(port); err == nil {
		return "", fmt.Errorf("port %s is at %s, and is the one to be made for %s: make another by hand", port, id.HostPort(), l.HostPort())
	}
	err = p.ensureDir("ports", port)
	for _, a := range []struct{ name, value string }{
		{"traddr", l.Address}, {"trsvcid", l.Service}, {"adrfam", strings.ToLower(l.Family)}, {"trtype", "tcp"},
	} {
		if err == nil {
			err = p.ensure(portAttr(port, a.name), a.value)
		}
	}
	return port, err
}

// portAddress returns the address of a port. It fails if the port is not a TCP port.
func (p *Provisioner) portAddress(port string) (nvmf.TransportID, error) {
	var text []string
	for _, key := range []string{"trtype", "adrfam", "traddr", "trsvcid"} {
		v, err := p.tree.Read(portAttr(port, key))
		if err != nil {
			return nvmf.TransportID{}, err
		}
		text = append(text, key+":"+v)
	}
	id, err := nvmf.ParseTransportID(strings.Join(text, " ") + " subnqn:x")
	id.SubNQN = ""
	return id, err
}

// portsOf returns the ports that a subsystem is linked into.
func (p *Provisioner) portsOf(nqn string) ([]string, error) {
	ports, err := p.tree.List("ports")
	var in []string
	for _, port := range ports {
		there, e := p.has("ports/"+port+"/subsystems", nqn)
		if there {
			in = append(in, port)
		}
		err = errors.Join(err, e)
	}
	return in, err
}

// leavePorts unlinks a subsystem from all ports, which disconnects its hosts.
func (p *Provisioner) leavePorts(nqn string) error {
	ports, err := p.portsOf(nqn)
	for _, port := range ports {
		if err == nil {
			err = p.wrap(func() error { return p.tree.Unlink(portLink(port, nqn)) })
		}
	}
	return err
}

// tearDown removes a subsystem, or the parts of it that exist.
func (p *Provisioner) tearDown(nqn string) error {
	there, err := p.has("subsystems", nqn)
	if err != nil || !there {
		return err
	}
	if err := p.leavePorts(nqn); err != nil {
		return err
	}
	hosts, err := p.tree.List(allowedHosts(nqn))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, h := range hosts {
		if err := p.wrap(func() error { return p.tree.Unlink(allowedHosts(nqn) + "/" + h) }); err != nil {
			return err
		}
	}
	ids, err := p.tree.List(namespaces(nqn))
	if err != nil {
		return err
	}
	for _, id := range ids {
		ns := namespaces(nqn) + "/" + id
		if err := p.ensure(ns+"/enable", "0"); err != nil {
			return err
		}
		if err := p.wrap(func() error { return p.tree.Rmdir(ns) }); err != nil {
			return err
		}
	}
	return p.wrap(func() error { return p.tree.Rmdir(subsystem(nqn)) })
}
