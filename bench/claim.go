package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// claimPrefix is the prefix of the directories that a benchmark creates and removes.
const claimPrefix = "nvmecr-bench-"

// A claim is a directory for the duration of a run, locked by this process. The lock
// ends with the process, so a later run can recognize directories of killed runs.
type claim struct {
	path string
	lock *os.File // nil if the file system has no locks; other runs then do not remove the directory
}

// newClaim creates a directory in parent, and removes unused ones in it.
func newClaim(parent string) (*claim, error) {
	sweep(parent)
	for {
		path, err := os.MkdirTemp(parent, claimPrefix)
		if err != nil {
			return nil, err
		}
		c := &claim{path: path}
		if c.lock, err = lockDirectory(path, unix.LOCK_EX); err == nil {
			return c, nil
		}
		// Another run may have removed the directory between the two calls. Without a lock the
		// benchmark still runs.
		if !errors.Is(err, os.ErrNotExist) {
			return c, nil
		}
	}
}

// Close removes the directory and its content.
func (c *claim) Close() error {
	err := os.RemoveAll(c.path)
	if c.lock != nil {
		err = errors.Join(err, c.lock.Close())
	}
	return err
}

// claims has the directories of a run, by their parent directories.
type claims struct {
	parents []string
	all     []*claim
}

// in returns the run's directory in parent.
func (c *claims) in(parent string) (string, error) {
	if i := slices.Index(c.parents, parent); i >= 0 {
		return c.all[i].path, nil
	}
	one, err := newClaim(parent)
	if err != nil {
		return "", err
	}
	c.parents, c.all = append(c.parents, parent), append(c.all, one)
	return one.path, nil
}

func (c *claims) close() error {
	var errs []error
	for _, one := range c.all {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// sweep removes the directories in parent whose processes have ended. It leaves
// directories that cannot be opened, locked or removed, since another user owns them or
// another process uses them.
func sweep(parent string) {
	paths, _ := filepath.Glob(filepath.Join(parent, claimPrefix+"*")) // fails if parent is not a valid pattern; nothing is removed then
	for _, path := range paths {
		if lock, err := lockDirectory(path, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			_ = os.RemoveAll(path)
			lock.Close()
		}
	}
}

// lockDirectory locks an existing directory. It fails with os.ErrNotExist if the directory has been
// removed meanwhile.
func lockDirectory(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := os.Stat(path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
