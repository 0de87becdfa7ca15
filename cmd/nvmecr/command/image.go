package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

// prepareImage creates the backing file of the embedded target if necessary. Until the target runs, the file itself
// is the target in the settings.
func (o *runOptions) prepareImage(dir *store.StateDir, argv []string) error {
	if o.cfg.Job != "" && !o.cfg.Given("job-id") {
		return checkCommand(argv, os.Getenv, false)
	}
	if o.cfg.Job != "" {
		return errors.New("--job-id: runs on several nodes share a namespace, and without --target the target serves this host only; name one with --target")
	}
	if o.cfg.TLSKey != "" {
		return errors.New("--tls-psk: a run without --target has a target of its own, which has no TLS; leave the key out, or name a target that has")
	}
	if err := o.checkEmbedded(dir, argv); err != nil {
		return err
	}
	if err := o.makeImage(dir); err != nil {
		return err
	}
	o.cfg.Targets = []nvmf.TransportID{{Transport: nvmf.File, Address: dir.Image()}}
	return nil
}

// serveImage starts the embedded target. stop ends it.
func (o *runOptions) serveImage(dir *store.StateDir, lock *store.DirLock) (stop func(), err error) {
	remove, err := makeRunKey(o.cfg, dir)
	if err != nil {
		return nil, err
	}
	t, err := startEmbedded(o.cfg, dir, lock)
	if err != nil {
		remove()
		return nil, err
	}
	o.cfg.Targets = []nvmf.TransportID{t.id}
	return func() { t.stop(o.stderr); remove() }, nil
}

// makeImage creates the embedded target's backing file, or reads the size of the present one.
func (o *runOptions) makeImage(dir *store.StateDir) error {
	image := dir.Image()
	if err := o.checkFresh(); err != nil {
		return err
	}
	if !o.cfg.Fresh {
		if err := dir.CheckImage(); err != nil {
			return err
		}
	}
	info, err := os.Stat(image)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && o.cfg.Fresh:
		return o.newImage(image)
	case err != nil:
		return err
	case o.cfg.Given("size") && nvmf.Bytes(info.Size()) != o.cfg.Size:
		return fmt.Errorf("store %q is %s large, --size says %s, and a store keeps its size: leave --size out, use another --name, or copy out what you need (nvmecr cp) and start over with --fresh",
			o.cfg.Name, nvmf.Bytes(info.Size()), o.cfg.Size)
	}
	o.cfg.Size = nvmf.Bytes(info.Size())
	return nil
}

// newImage creates a backing file under a temporary name and renames it when complete. Processes that have the old
// file open keep it.
func (o *runOptions) newImage(image string) error {
	if o.cfg.Size == 0 {
		var err error
		if o.cfg.Size, err = spaceFor(filepath.Dir(image)); err != nil {
			return err
		}
	}
	if err := store.CheckSize(o.cfg); err != nil {
		return err
	}
	next := image + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // may be left by a run that was killed
	}
	if err := createImage(next, o.cfg.Size); err != nil {
		return fmt.Errorf("--size %s: %w", o.cfg.Size, err)
	}
	return os.Rename(next, image)
}

// Limits for the size of an image without --size. The file is sparse, but a store that is rewritten again and again
// comes to occupy its whole size.
const (
	minImage = 64 * nvmf.MiB
	maxImage = nvmf.TiB
)

// spaceFor returns half of the free space of the file system of dir, within these limits.
func spaceFor(dir string) (nvmf.Bytes, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("free space in %s: %w", dir, err)
	}
	half := nvmf.Bytes(fs.Bavail) * nvmf.Bytes(fs.Bsize) / 2
	return min(max(half-half%nvmf.MiB, minImage), maxImage), nil
}
