package nvmet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/filedev"
	"nvmecr/nvmf/provision"
)

// Prefixes of the names of images. The job follows.
const (
	liveName  = "nvmecr:"
	freedName = "nvmecr-freed:"
	newName   = "nvmecr-new:"
)

// blockSize is the unit of namespace sizes, which are rounded up.
const blockSize = 4 * nvmf.KiB

// prepare checks that the target and the directory exist.
func (p *Provisioner) prepare() error {
	if _, err := p.tree.List("subsystems"); err != nil {
		return fmt.Errorf("no NVMe target at %s: modprobe nvmet nvmet-tcp, and mount -t configfs none /sys/kernel/config: %w", p.o.Root, err)
	}
	if !filepath.IsAbs(p.o.Dir) {
		return fmt.Errorf("%w: the namespaces need a directory: add ?dir=/DIRECTORY", provision.ErrInvalid)
	}
	dir, err := provision.OpenDirectory(p.o.Dir)
	if err != nil {
		return err
	}
	return dir.Close()
}

func (p *Provisioner) image(kind, job string) string { return filepath.Join(p.o.Dir, kind+job) }

// imageSize returns the size of a job's image; live reports whether there is one.
func (p *Provisioner) imageSize(job string) (size nvmf.Bytes, live bool, err error) {
	path := p.image(liveName, job)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	size, err = filedev.Size(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return size, err == nil, errors.Join(err, f.Close())
}

// images returns the jobs that have an image, freed or not.
func (p *Provisioner) images() (map[string]bool, error) {
	entries, err := os.ReadDir(p.o.Dir)
	jobs := map[string]bool{}
	for _, e := range entries {
		for _, kind := range []string{liveName, freedName} {
			if job, ok := strings.CutPrefix(e.Name(), kind); ok && provision.CheckJob(job) == nil {
				jobs[job] = true
			}
		}
	}
	return jobs, err
}

// makeImage creates an image that reads as zeros.
func (p *Provisioner) makeImage(job string, size nvmf.Bytes) error {
	if p.o.Device != "" {
		return p.alone(func() error { return p.linkDevice(job, size) })
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p.o.Dir, &st); err != nil {
		return fmt.Errorf("%s: %w", p.o.Dir, err)
	}
	if free := nvmf.Bytes(st.Bavail) * nvmf.Bytes(st.Bsize); size > free {
		return fmt.Errorf("%w for %s: the disk of %s has %s left", provision.ErrNoSpace, size, p.o.Dir, free.AlignDown(nvmf.MiB))
	}
	temporary := p.image(newName, job)
	if err := p.wrap(func() error { return makeFile(temporary, int64(size)) }); err != nil {
		return err
	}
	return p.wrap(func() error { return p.rename(temporary, p.image(liveName, job)) })
}

// makeFile creates a sparse file, and replaces any file of that name.
func makeFile(path string, size int64) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Sync(), f.Close())
}

// rename renames a file durably.
func (p *Provisioner) rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return p.sync(p.o.Dir)
}

// symlink creates a symbolic link durably. If a power failure removed the link to a
// device, the next Create would zero the device.
func (p *Provisioner) symlink(to, name string) error {
	if err := os.Symlink(to, name); err != nil {
		return err
	}
	return p.sync(p.o.Dir)
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// linkDevice zeroes the device and assigns it to a job. Calls must not overlap: between
// the check and the link, another call would also find the device free.
func (p *Provisioner) linkDevice(job string, size nvmf.Bytes) error {
	if err := p.deviceFree(); err != nil {
		return err
	}
	f, err := os.OpenFile(p.o.Device, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return fmt.Errorf("device: %w", err)
	}
	have, err := filedev.Size(f)
	if err == nil && have != size {
		err = fmt.Errorf("%w: device %s has %s, and a job gets all of it: create it with size %d", provision.ErrInvalid, p.o.Device, have, uint64(have))
	}
	if err == nil {
		err = p.wrap(func() error { return errors.Join(zero(f, int64(have)), f.Sync()) })
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return p.wrap(func() error { return p.symlink(p.o.Device, p.image(liveName, job)) })
}

// deviceFree returns an error if the device is in use: by a job, by a job that is being
// deleted, or by any subsystem of the target. It recognizes the device by other names,
// too.
func (p *Provisioner) deviceFree() error {
	device, err := os.Stat(p.o.Device)
	if err != nil {
		return fmt.Errorf("device: %w", err)
	}
	entries, err := os.ReadDir(p.o.Dir)
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 && sameDevice(device, filepath.Join(p.o.Dir, e.Name())) {
			return fmt.Errorf("%w: device %s is %s's: delete that job first", provision.ErrNoSpace, p.o.Device, e.Name())
		}
	}
	if err != nil {
		return err
	}
	subsystems, err := p.tree.List("subsystems")
	for _, nqn := range subsystems {
		ids, e := p.tree.List(namespaces(nqn))
		err = errors.Join(err, e)
		for _, id := range ids {
			path, e := p.tree.Read(namespaces(nqn) + "/" + id + "/device_path")
			err = errors.Join(err, e)
			if sameDevice(device, path) {
				return fmt.Errorf("%w: device %s is namespace %s of %s: remove that first", provision.ErrNoSpace, p.o.Device, id, nqn)
			}
		}
	}
	return err
}

// sameDevice reports whether a path leads to the device, through any device node.
func sameDevice(device fs.FileInfo, path string) bool {
	other, err := os.Stat(path)
	if err != nil {
		return false // the kernel serves no file of that name
	}
	a, b := device.Sys().(*syscall.Stat_t), other.Sys().(*syscall.Stat_t)
	block := a.Mode&unix.S_IFMT == unix.S_IFBLK && b.Mode&unix.S_IFMT == unix.S_IFBLK
	return os.SameFile(device, other) || block && a.Rdev == b.Rdev
}

// zero overwrites a file or device with zeros.
func zero(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	zeros := make([]byte, nvmf.MiB)
	for at := int64(0); at < size; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(size-at, int64(len(zeros)))], at); err != nil {
			return err
		}
	}
	return nil
}

// imageUUID returns the UUID of a job's image, which does not change.
func (p *Provisioner) imageUUID(job string) (uuid.UUID, error) {
	f, err := os.OpenFile(p.image(liveName, job), os.O_RDWR, 0)
	if err != nil {
		return uuid.Nil, err
	}
	id, err := filedev.UUID(f)
	return id, errors.Join(err, f.Close())
}

// freeImage renames the image of a job, if it exists, to mark it as freed.
func (p *Provisioner) freeImage(job string) error {
	live := p.image(liveName, job)
	if _, err := os.Lstat(live); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// The rename replaces an image that was freed before, which removes that image.
	return p.wrap(func() error { return p.rename(live, p.image(freedName, job)) })
}

// removeImage removes a freed image, and the remains of an interrupted create.
func (p *Provisioner) removeImage(job string) error {
	for _, kind := range []string{newName, freedName} {
		path := p.image(kind, job)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := p.wrap(func() error { return os.Remove(path) }); err != nil {
			return err
		}
	}
	return nil
}
