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

// The attributes of a host that its keys are in.
const (
	hostKey       = "dhchap_key"
	controllerKey = "dhchap_ctrl_key"
)

// keyName and a host's NQN name an empty file beside the images: the host has
// its keys from us. A host without one, and its keys, are somebody else's.
const keyName = "nvmecr-key:"

// lockedName and a job name an empty file beside the images: the job's hosts
// have keys, also when the kernel has forgotten them.
const lockedName = "nvmecr-keyed:"

// awayName, a port and a subsystem name an empty file beside the images while a
// program has taken the subsystem out of the port and will put it back.
const awayName = "nvmecr-away:"

// locked reports whether a job was exposed with keys.
func (p *Provisioner) locked(job string) (bool, error) {
	_, err := os.Lstat(p.image(lockedName, job))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// lock makes a job one that was exposed with keys, for all boots.
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

// unlock undoes lock.
func (p *Provisioner) unlock(job string) error {
	if locked, err := p.locked(job); !locked || err != nil {
		return err
	}
	return p.wrap(func() error { return os.Remove(p.image(lockedName, job)) })
}

// keyed reports whether a host has to prove who it is.
func (p *Provisioner) keyed(host string) bool {
	key, err := p.tree.Read("hosts/" + host + "/" + hostKey)
	return err == nil && key != ""
}

// expose lists the hosts. It cuts all of the job off if one of them goes, and
// all of every subsystem that has a host which gets another key.
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

// renewed returns the subsystems of the hosts that are to get other keys, and
// fails where one cannot.
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

// apart removes subsystems from their ports while do runs, and puts them back also
// after an error. If the process dies, the next exclusive call puts them back. The
// subsystems may belong to other jobs or other administrators, whose own calls would
// not restore them.
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

// putBack puts a subsystem back into a port, if there are both still.
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
		return nil // it did not come to that
	}
	return err
}

// putAllBack does what programs have left to do that died.
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

// list makes the list of a subsystem's hosts, and gives them their keys.
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

// forgetHosts removes the hosts that have their keys from us and that no
// subsystem lists any more: for another job they begin anew.
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

// patience is how long another program may be at work in the directory: what
// it does is brief, unless it zeroes a device.
const patience = 5 * time.Second

// alone runs do while no other program of ours changes hosts or devices.
func (p *Provisioner) alone(do func() error) error {
	dir, err := provision.OpenDirectory(p.o.Dir)
	if err != nil {
		return err
	}
	defer dir.Close() // with the lock
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

// attributes are the keys of a host as configfs has them. An attribute cannot
// be emptied again, so a key of the target that is not asked for any more stays.
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

// ensureKeys gives a host its keys.
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

// ensureSecret is ensure for an attribute that others are not to read.
func (p *Provisioner) ensureSecret(name, value string) error {
	if err := p.tree.Hide(name); err != nil {
		return err
	}
	return p.ensure(name, value)
}
