package spdk

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"nvmecr/internal/jsonrpc"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
)

// key is an entry of keyring_get_keys.
type key struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Removed bool   `json:"removed"`
}

// keyName returns the name of a key of a job's host in a store. It depends on the
// store, since a target with several stores has one keyring. It has no colon, since
// SPDK truncates names at a colon.
func keyName(in *store, job, host, role string, s dhchap.Secret) string {
	if s.IsZero() {
		return ""
	}
	digest := sha256.Sum256([]byte(strings.Join([]string{in.UUID, job, host, role, s.Reveal()}, "\x00")))
	return fmt.Sprintf("nvmecr.%s.%x", job, digest[:16])
}

// jobOfKey returns the job of a key's name, or an empty string if the key belongs to no
// job.
func jobOfKey(name string) string {
	name, ok := strings.CutPrefix(name, "nvmecr.")
	i := strings.LastIndexByte(name, '.')
	if !ok || i < 0 || provision.CheckJob(name[:i]) != nil {
		return ""
	}
	return name[:i]
}

// keyNames returns a host with the names of its keys, as SPDK lists it.
func keyNames(in *store, job, host string, k dhchap.Keys) hostName {
	return hostName{host, keyName(in, job, host, "host", k.Host), keyName(in, job, host, "controller", k.Controller)}
}

// of returns the parameters that add a host to a subsystem.
func (h hostName) of(nqn string) object {
	o := object{"nqn": nqn, "host": h.NQN}
	if h.Key != "" {
		o["dhchap_key"] = h.Key
	}
	if h.ControllerKey != "" {
		o["dhchap_ctrlr_key"] = h.ControllerKey
	}
	return o
}

// newKey is the prefix of a key's file while the file is written.
const newKey = ".new-"

// keyFile returns the path of a key's file. The name contains the UUID of the store,
// since several targets may use the directory, and only one of them can have the store
// open.
func (p *Provisioner) keyFile(s *store, name string) string {
	return filepath.Join(p.o.Keys, s.UUID+"."+name)
}

// addKeys adds the keys of a job's hosts to SPDK's keyring.
func (p *Provisioner) addKeys(ctx context.Context, store *store, job string, hosts []string, keys map[string]dhchap.Keys) error {
	if p.o.Keys == "" && len(hosts) > 0 {
		return fmt.Errorf("%w: SPDK reads the keys of hosts from files: say where with &keys=/DIRECTORY, one that only nvmf_tgt's user and root can enter", provision.ErrInvalid)
	}
	known, err := p.keys(ctx)
	if err != nil {
		return err
	}
	for _, h := range hosts {
		names := keyNames(store, job, h, keys[h])
		for name, secret := range map[string]dhchap.Secret{names.Key: keys[h].Host, names.ControllerKey: keys[h].Controller} {
			if name == "" {
				continue
			}
			path, err := p.writeKey(p.keyFile(store, name), secret)
			if _, ok := known[name]; err == nil && !ok {
				err = p.call(ctx, "keyring_file_add_key", object{"name": name, "path": path}, nil)
			}
			if err != nil {
				return fmt.Errorf("key of host %s: %w", h, err)
			}
		}
	}
	return nil
}

// keys returns the names in SPDK's keyring, and the paths of their files.
func (p *Provisioner) keys(ctx context.Context) (map[string]string, error) {
	var list []key
	err := p.call(ctx, "keyring_get_keys", nil, &list)
	names := map[string]string{}
	for _, k := range list {
		if !k.Removed {
			names[k.Name] = k.Path
		}
	}
	return names, err
}

// writeKey writes a key's file unless it exists, since the name determines the content.
// It returns the absolute path.
func (p *Provisioner) writeKey(path string, s dhchap.Secret) (absolute string, err error) {
	dir, err := provision.OpenDirectory(p.o.Keys)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	if b, err := os.ReadFile(path); err == nil && string(b) == s.Reveal() {
		return path, nil
	}
	temporary := filepath.Join(filepath.Dir(path), newKey+filepath.Base(path))
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(s.Reveal())
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return path, dir.Sync()
}

// dropKeys removes the keys of a job from SPDK and from the disk, except those of the
// given hosts.
func (p *Provisioner) dropKeys(ctx context.Context, store *store, job string, except []hostName) error {
	keep := map[string]bool{}
	for _, h := range except {
		keep[h.Key], keep[h.ControllerKey] = true, true
	}
	known, err := p.keys(ctx)
	var e *jsonrpc.Error
	if errors.As(err, &e) && e.Code == jsonrpc.CodeMethodNotFound {
		return nil // this SPDK has no keyring
	}
	if err != nil {
		return err
	}
	for name, path := range known {
		// A key of another store belongs to another job of the same name.
		if jobOfKey(name) != job || keep[name] || filepath.Base(path) != filepath.Base(p.keyFile(store, name)) {
			continue
		}
		if err := p.call(ctx, "keyring_file_remove_key", object{"name": name}, nil); err != nil {
			return err
		}
		// Use the path in the keyring: this caller may not know the directory.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	files, err := p.keyFiles(store, job)
	for _, name := range files {
		if !keep[name] {
			err = errors.Join(err, os.Remove(p.keyFile(store, name)))
		}
	}
	return errors.Join(err, p.dropNewKeys(store, job))
}

// dropNewKeys removes files of a job's keys that interrupted programs have left.
func (p *Provisioner) dropNewKeys(s *store, job string) error {
	if p.o.Keys == "" {
		return nil
	}
	entries, err := os.ReadDir(p.o.Keys)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), newKey+s.UUID+"."); ok && jobOfKey(name) == job {
			err = errors.Join(err, os.Remove(filepath.Join(p.o.Keys, e.Name())))
		}
	}
	return err
}

// keyFiles returns the names of the keys of a job that are on disk.
func (p *Provisioner) keyFiles(s *store, job string) ([]string, error) {
	if p.o.Keys == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(p.o.Keys)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), s.UUID+"."); ok && jobOfKey(name) == job {
			names = append(names, name)
		}
	}
	return names, err
}
