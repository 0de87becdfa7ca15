package nvmet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
)

// Attributes with the keys of a host.
const (
	hostKey       = "dhchap_key"
	controllerKey = "dhchap_ctrl_key"
)

// keyName followed by the NQN of a host is the name of an empty file in the directory
// of images. The file says that this package has set the keys of the host. Other hosts,
// and their keys, belong to other administrators.
const keyName = "nvmecr-key:"

// lockedName followed by a job is the name of an empty file in the directory of images.
// The file says that the job's hosts have keys, even after the kernel has lost them.
const lockedName = "nvmecr-keyed:"

// awayName followed by a port and a subsystem is the name of an empty file in the
// directory of images. It exists while a program has removed the subsystem from the
// port and will restore it.
const awayName = "nvmecr-away:"

// locked reports whether a job was exposed with keys.
func (p *Provisioner) locked(job string) (bool, error) {
	_, err := os.Lstat(p.image(lockedName, job))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// lock records durably that a job was exposed with keys.
func (p *Provisioner) lock(job string) error {
	if locked, err := p.locked(job); locked || err != nil {
		return err
	}
	return p.wrap(func() error {
		if err := os.WriteFile(p.image(lockedName, job), nil, 0o600); err != nil {
			return err
		}
		return p.sync(p.o.Dir)
	})
}

// unlock reverts lock.
func (p *Provisioner) unlock(job string) error {
	if locked, err := p.locked(job); !locked || err != nil {
		return err
	}
	return p.wrap(func() error { return os.Remove(p.image(lockedName, job)) })
}

// keyed reports whether a host has to authenticate.
func (p *Provisioner) keyed(host string) bool {
	key, err := p.tree.Read("hosts/" + host + "/" + hostKey)
	return err == nil && key != ""
}

// expose sets the list of hosts. If a host is removed, all hosts of the job are
// disconnected. If a host gets another key, all hosts of every subsystem that lists
// this host are disconnected.
func (p *Provisioner) expose(job string, have, hosts []string, keys map[string]dhchap.Keys) error {
	nqn := provision.NQN(p.o.Base, job)
	port, err := p.choosePort()
	if err != nil {
		return err
	}
	cut, err := p.renewed(job, hosts, keys)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(have, func(h string) bool { return !slices.Contains(hosts, h) }) {
		cut = append(cut, nqn)
	}
	if slices.ContainsFunc(hosts, func(h string) bool { return keys != nil || p.keyed(h) }) {
		if err := p.lock(job); err != nil {
			return err
		}
	}
	err = p.apart(cut, func() error { return p.list(nqn, have, hosts, keys) })
	if err == nil {
		err = errors.Join(p.ensureLink(port, nqn), p.forgetHosts())
	}
	if err == nil && len(hosts) == 0 {
		err = p.unlock(job)
	}
	return err
}

// renewed returns the subsystems of the hosts that get other keys. It fails if the key
// of a host cannot be changed.
func (p *Provisioner) renewed(job string, hosts []string, keys map[string]dhchap.Keys) ([]string, error) {
	var all []string
	for _, h := range hosts {
		if keys == nil || p.hasKeys(h, keys[h]) {
			continue
		}
		if err := p.ensureDir("hosts", h); err != nil {
			return nil, err
		}
		for name := range attributes(keys[h]) {
			if _, err := p.tree.Read("hosts/" + h + "/" + name); errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("this kernel's target does not authenticate hosts (CONFIG_NVME_TARGET_AUTH): %w: %w", provision.ErrUnsupported, err)
			}
		}
		_, err := os.Lstat(p.image(keyName, h))
		if err != nil && p.keyed(h) {
			return nil, fmt.Errorf("job %s: %w: host %s has another key already, which is not from here, for all its subsystems: expose it without --dhchap-keys, or with that key, or remove it first",
				job, provision.ErrInvalid, h)
		}
		subsystems, err := p.listing(h)
		if err != nil {
			return nil, err
		}
		all = append(all, subsystems...)
	}
	return all, nil
}

// apart removes subsystems from their ports while do runs, and restores them even after
// an error. If the process dies, the next call of alone restores them. The subsystems
// may belong to other jobs or other administrators, whose own calls would not restore
// them.
func (p *Provisioner) apart(nqns []string, do func() error) error {
	var back []func() error
	var err error
	for _, nqn := range slices.Compact(slices.Sorted(slices.Values(nqns))) {
		ports, e := p.portsOf(nqn)
		err = errors.Join(err, e)
		for _, port := range ports {
			back = append(back, func() error { return p.putBack(port, nqn) })
			if err == nil {
				err = p.wrap(func() error { return os.WriteFile(p.away(port, nqn), nil, 0o600) })
			}
		}
		if err == nil {
			err = p.leavePorts(nqn)
		}
	}
	if err == nil {
		err = do()
	}
	for _, link := range back {
		err = errors.Join(err, link())
	}
	return err
}

func (p *Provisioner) away(port, nqn string) string { return p.image(awayName, port+":"+nqn) }

// putBack links a subsystem into a port again, if both still exist.
func (p *Provisioner) putBack(port, nqn string) error {
	inPort, err := p.has("ports", port)
	there, e := p.has("subsystems", nqn)
	if err = errors.Join(err, e); err == nil && inPort && there {
		err = p.ensureLink(port, nqn)
	}
	if err != nil {
		return err
	}
	err = p.wrap(func() error { return os.Remove(p.away(port, nqn)) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the subsystem was not removed
	}
	return err
}

// putAllBack restores the subsystems that interrupted programs have removed from their
// ports.
func (p *Provisioner) putAllBack() error {
	entries, err := os.ReadDir(p.o.Dir)
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), awayName); ok {
			port, nqn, _ := strings.Cut(name, ":")
			err = errors.Join(err, p.putBack(port, nqn))
		}
	}
	return err
}

// list sets the list of a subsystem's hosts, and the keys of these hosts.
func (p *Provisioner) list(nqn string, have, hosts []string, keys map[string]dhchap.Keys) error {
	for _, h := range have {
		if slices.Contains(hosts, h) {
			continue
		}
		if err := p.wrap(func() error { return p.tree.Unlink(allowedHosts(nqn) + "/" + h) }); err != nil {
			return err
		}
	}
	for _, h := range hosts {
		if err := p.ensureDir("hosts", h); err != nil {
			return err
		}
		if err := p.ensureKeys(h, keys[h]); err != nil {
			return err
		}
		if slices.Contains(have, h) {
			continue
		}
		if err := p.wrap(func() error { return p.tree.Link("hosts/"+h, allowedHosts(nqn)+"/"+h) }); err != nil {
			return err
		}
	}
	return nil
}

// forgetHosts removes hosts that no subsystem lists and whose keys this package has
// set. If such a host is listed for another job, it starts without keys.
func (p *Provisioner) forgetHosts() error {
	entries, err := os.ReadDir(p.o.Dir)
	for _, e := range entries {
		host, ok := strings.CutPrefix(e.Name(), keyName)
		if !ok || err != nil {
			continue
		}
		var subsystems []string
		if subsystems, err = p.listing(host); err != nil || len(subsystems) > 0 {
			continue
		}
		var there bool
		if there, err = p.has("hosts", host); there {
			err = p.wrap(func() error { return p.tree.Rmdir("hosts/" + host) })
		}
		if err == nil {
			err = p.wrap(func() error { return os.Remove(p.image(keyName, host)) })
		}
	}
	return err
}

// listing returns the subsystems that list a host.
func (p *Provisioner) listing(host string) ([]string, error) {
	subsystems, err := p.tree.List("subsystems")
	var all []string
	for _, nqn := range subsystems {
		there, e := p.has(allowedHosts(nqn), host)
		if there {
			all = append(all, nqn)
		}
		err = errors.Join(err, e)
	}
	return all, err
}

// patience is the time limit for waiting until another program has finished its work in
// the directory. That is short, unless the program zeroes a device.
const patience = 5 * time.Second

// alone runs do while no other nvmecr program changes hosts or devices.
func (p *Provisioner) alone(do func() error) error {
	dir, err := provision.OpenDirectory(p.o.Dir)
	if err != nil {
		return err
	}
	defer dir.Close() // also unlocks the directory
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return errors.Join(p.putAllBack(), do())
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return fmt.Errorf("another program is at work in %s, repeat this when it has ended: %w", p.o.Dir, err)
		}
	}
}

// attributes returns the keys of a host in the form of configfs. An attribute cannot be
// emptied, so a controller's key stays when it is no longer needed.
func attributes(k dhchap.Keys) map[string]string {
	all := map[string]string{}
	if !k.Host.IsZero() {
		all[hostKey] = k.Host.Reveal()
	}
	if !k.Controller.IsZero() {
		all[controllerKey] = k.Controller.Reveal()
	}
	return all
}

// hasKeys reports whether a host has these keys.
func (p *Provisioner) hasKeys(host string, k dhchap.Keys) bool {
	for name, text := range attributes(k) {
		if have, err := p.tree.Read("hosts/" + host + "/" + name); err != nil || have != text {
			return false
		}
	}
	return true
}

// ensureKeys sets the keys of a host, unless the host has them already.
func (p *Provisioner) ensureKeys(host string, k dhchap.Keys) error {
	if !k.Host.IsZero() && !p.hasKeys(host, k) {
		if err := p.wrap(func() error { return os.WriteFile(p.image(keyName, host), nil, 0o600) }); err != nil {
			return err
		}
	}
	for name, text := range attributes(k) {
		if err := p.ensureSecret("hosts/"+host+"/"+name, text); err != nil {
			return err
		}
	}
	return nil
}

// ensureSecret is like ensure, for an attribute that other users must not read.
func (p *Provisioner) ensureSecret(name, value string) error {
	if err := p.tree.Hide(name); err != nil {
		return err
	}
	return p.ensure(name, value)
}
