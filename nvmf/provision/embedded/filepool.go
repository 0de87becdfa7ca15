package embedded

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/target"
)

// Names in the directory of a pool, and in the directory of a job. No job has a name
// that begins with a dot.
const (
	newPrefix   = ".new:"
	freedPrefix = ".freed:"
	imageName   = "namespace.img"
	recordName  = "job.json"
	newSuffix   = ".new" // suffix of a record that is being written
)

// filePool is a Pool of files in a directory.
type filePool struct {
	dir  *os.File // locked
	path string
	// step is called before every change of the disk, and may fail it. Tests use it to
	// examine the state after a crash at that point.
	step func() error
}

// openFilePool opens a directory, and removes the remains of interrupted calls.
func openFilePool(path string) (*filePool, error) {
	dir, err := provision.OpenDirectory(path)
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("another target serves it, end that one or give another directory: %w", unix.EBUSY)
		}
		return nil, errors.Join(fmt.Errorf("pool %s: %w", path, err), dir.Close())
	}
	p := &filePool{dir: dir, path: path, step: func() error { return nil }}
	if err := p.tidy(); err != nil {
		return nil, errors.Join(fmt.Errorf("pool: %w", err), dir.Close())
	}
	return p, nil
}

func (p *filePool) tidy() error {
	entries, err := os.ReadDir(p.path)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) || strings.HasPrefix(e.Name(), freedPrefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(p.path, e.Name())))
		}
		if e.IsDir() && provision.CheckJob(e.Name()) == nil { // the record may have keys
			if e := os.Remove(p.at(e.Name(), recordName+newSuffix)); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

func (p *filePool) at(elem ...string) string {
	return filepath.Join(append([]string{p.path}, elem...)...)
}

func (p *filePool) jobs() (map[string]provision.State, error) {
	entries, err := os.ReadDir(p.path)
	jobs := map[string]provision.State{}
	for _, e := range entries {
		if job, ok := strings.CutPrefix(e.Name(), freedPrefix); ok && jobs[job] == "" {
			jobs[job] = provision.Freed
		} else if e.IsDir() && provision.CheckJob(e.Name()) == nil {
			jobs[e.Name()] = provision.Ready
		}
	}
	return jobs, err
}

func (p *filePool) load(job string) (record, error) {
	var r record
	b, err := os.ReadFile(p.at(job, recordName))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil || r.Job != job {
		return record{}, fmt.Errorf("job %s: %s is not its record (%w): bring it back from a copy, or delete the job, whose data is lost then",
			job, p.at(job, recordName), cmp.Or(err, errors.New("it names another job")))
	}
	return r, nil
}

func (p *filePool) create(r record) error {
	if err := p.fits(r); err != nil {
		return err
	}
	dir := p.at(newPrefix + r.Job)
	if err := p.change(func() error { return os.RemoveAll(dir) }); err != nil {
		return err
	}
	err := p.change(func() error { return os.Mkdir(dir, 0o700) })
	if err == nil {
		err = p.change(func() error { return makeImage(filepath.Join(dir, imageName), int64(r.Size)) })
	}
	if err == nil {
		err = p.change(func() error { return writeRecord(filepath.Join(dir, recordName), r) })
	}
	if err == nil {
		err = p.change(func() error { return syncDir(dir) })
	}
	if err == nil {
		err = p.change(func() error { return os.Rename(dir, p.at(r.Job)) })
	}
	if err == nil {
		err = p.change(p.dir.Sync)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
		err = fmt.Errorf("job %s: %w for %s in %s: %w", r.Job, provision.ErrNoSpace, r.Size, p.path, err)
	}
	return err
}

// fits returns an error if the disk currently lacks space for a namespace. Nothing is
// reserved: files are sparse, and a write to a full disk fails with Capacity Exceeded.
func (p *filePool) fits(r record) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(p.dir.Fd()), &fs); err != nil {
		return fmt.Errorf("pool %s: %w", p.path, err)
	}
	if free := nvmf.Bytes(fs.Bavail) * nvmf.Bytes(fs.Bsize); r.Size > free {
		return fmt.Errorf("job %s: %w for %s: the disk of %s has %s left", r.Job, provision.ErrNoSpace, r.Size, p.path, free.AlignDown(nvmf.MiB))
	}
	return nil
}

// change executes one step of a call.
func (p *filePool) change(do func() error) error {
	if err := p.step(); err != nil {
		return err
	}
	return do()
}

// makeImage creates a sparse file.
func makeImage(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Sync(), f.Close())
}

// writeRecord writes a record, and replaces any file of that name.
func writeRecord(path string, r record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (p *filePool) open(r record) (target.Backing, error) {
	// The process that renamed the directory may have failed before it synced the pool.
	if err := p.dir.Sync(); err != nil {
		return nil, err
	}
	// The target follows symbolic links. A pool must have none.
	path := p.at(r.Job, imageName)
	if info, err := os.Lstat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: bring it back from a copy", path)
	}
	b, err := target.OpenFile(path, blockSize)
	if err == nil && b.Identity().Capacity() != r.Size {
		err = errors.Join(fmt.Errorf("%s has %s, and %s says %s: bring one of them back from a copy", path,
			b.Identity().Capacity(), p.at(r.Job, recordName), r.Size), b.Close())
	}
	return b, err
}

func (p *filePool) save(r record) (done bool, err error) {
	path := p.at(r.Job, recordName)
	if err := p.change(func() error { return writeRecord(path+newSuffix, r) }); err != nil {
		return false, err
	}
	if err := p.change(func() error { return os.Rename(path+newSuffix, path) }); err != nil {
		return false, err
	}
	return true, p.change(func() error { return syncDir(p.at(r.Job)) })
}

func (p *filePool) free(job string) (done bool, err error) {
	err = p.change(func() error { return os.Rename(p.at(job), p.at(freedPrefix+job)) })
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Lstat(p.at(freedPrefix + job)) // an earlier call may have renamed it
	}
	if err != nil {
		return false, err
	}
	return true, p.change(p.dir.Sync)
}

func (p *filePool) purge(job string) error {
	for _, prefix := range []string{freedPrefix, newPrefix} {
		if _, err := os.Lstat(p.at(prefix + job)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := p.change(func() error { return os.RemoveAll(p.at(prefix + job)) }); err != nil {
			return err
		}
	}
	return nil
}

// Close unlocks the directory for the next target.
func (p *filePool) Close() error { return p.dir.Close() }
