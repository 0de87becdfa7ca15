package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// claimPrefix is the prefix of the directories that a benchmark makes and removes.
const claimPrefix = "nvmecr-bench-"

// A claim is a directory for the duration of a run, locked by the process. The lock ends with the
// process, so directories of killed runs can be distinguished from those in use.
type claim struct {
	path string
	lock *os.File // nil if the file system has no locks; no run then takes the directory for unused
}

// newClaim makes a directory in parent, and removes unused ones there.
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

// claims has the directories of a run, by their parent.
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

// sweep removes the directories in parent whose processes have ended. A directory that cannot be
// opened, locked or removed stays: it is another user's, or in use.
func sweep(parent string) {
	paths, _ := filepath.Glob(filepath.Join(parent, claimPrefix+"*")) // fails if parent is no valid pattern; nothing is removed then
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
