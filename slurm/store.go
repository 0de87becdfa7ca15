package slurm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvmecr/internal/crc64"
)

// A Store is the state directory. It contains:
//
//	lock          byte 0 is locked while space is planned, a byte of its own for each lease while the lease is changed
//	NAME.lease    a lease, mode 0600: it contains a key
//
// The directory belongs to Slurm's user. It is on a file system that the controller and the nodes share, without
// root_squash: nodes read it as root.
type Store struct{ dir string }

const suffix = ".lease"

// lock takes the lock of the directory. It is held while space is planned, never during a command to a target.
func (s *Store) lock() (unlock func(), err error) { return s.lockByte(0, unix.F_OFD_SETLKW) }

// lockLease takes the lock of one lease, which is held during a change of the lease. A caller that needs both locks
// takes this one first.
func (s *Store) lockLease(name string) (unlock func(), err error) {
	return s.lockByte(byteOf(name), unix.F_OFD_SETLKW)
}

// tryLease is lockLease without waiting: ok is false if another process holds the lock.
func (s *Store) tryLease(name string) (unlock func(), ok bool, err error) {
	unlock, err = s.lockByte(byteOf(name), unix.F_OFD_SETLK)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, false, nil
	}
	return unlock, err == nil, err
}

// byteOf returns the byte of the lock file for a lease. Two leases may share a byte, which only makes them wait for
// each other.
func byteOf(name string) int64 { return 1 + int64(crc64.Checksum([]byte(name))>>2) }

// lockByte locks a byte of the file until unlock, or until the process ends.
func (s *Store) lockByte(at int64, how int) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w; make it, for Slurm's user alone (mode 0700)", err)
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0, Start: at, Len: 1}
	for {
		if err = unix.FcntlFlock(f.Fd(), how, &l); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock of the state directory: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name+suffix) }

// load returns a lease; fs.ErrNotExist if there is none of that name.
func (s *Store) load(name string) (*Lease, error) {
	b, err := os.ReadFile(s.path(name))
	if err != nil {
		return nil, err
	}
	l, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path(name), err)
	}
	return l, nil
}

// save replaces the file of a lease atomically.
func (s *Store) save(l *Lease) error {
	b, err := encode(l)
	if err != nil {
		return err
	}
	next := s.path(l.Name) + ".new"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("lease %s: %w", l.Name, err)
	}
	return errors.Join(os.Rename(next, s.path(l.Name)), s.sync())
}

func (s *Store) remove(name string) error {
	if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.sync()
}

func (s *Store) sync() error {
	d, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// all returns the leases by name, and an error for each that cannot be read.
func (s *Store) all() (leases []*Lease, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		l, e := s.load(name)
		switch {
		case errors.Is(e, fs.ErrNotExist): // removed meanwhile
		case e != nil:
			err = errors.Join(err, e)
		default:
			leases = append(leases, l)
		}
	}
	return leases, err
}

// ofJob returns the lease of a job; nil if it has none.
func (s *Store) ofJob(job uint32) (*Lease, error) {
	leases, err := s.all()
	if i := slices.IndexFunc(leases, func(l *Lease) bool { return l.Job == job }); i >= 0 {
		return leases[i], nil
	}
	return nil, err
}
