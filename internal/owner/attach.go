package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// attachFile is in the directory of a group on hosts other than that of `nvmecr run`. Its bytes are locked: attachByte by
// all processes that attach, for reading, and by a server that ends, for writing; startByte by who starts a server.
const attachFile = "attach"

const (
	attachByte = iota // fcntl(2), F_OFD_SETLK: children that are forked have it, too
	startByte         // F_SETLK: they have it not, so nobody waits for them
)

func byteLock(kind int16, at int64) *unix.Flock_t {
	return &unix.Flock_t{Type: kind, Start: at, Len: 1}
}

// OfRun says that `nvmecr run` has started the group's run on this host, by Prepare.
func OfRun(group string) bool {
	_, err := os.Lstat(filepath.Join(Directory(group), runFile))
	return err == nil
}

// Attach has the group's run served on this host for as long as this process lives, or a child that it forks. Where nobody
// has called ListenForHandovers it calls start, in one process at a time; start returns once somebody has. It waits
// for other processes until ctx ends.
//
// It does not look again: whoever has something for one that was killed meanwhile finds out (DialSuccessor).
func Attach(ctx context.Context, group string, start func() error) error {
	fd, err := attach(ctx, group)
	if err != nil {
		return fmt.Errorf("attaching to the run on this host: %w", err)
	}
	if isListening(group) {
		return nil
	}
	if err := waitForLock(ctx, fd, unix.F_SETLK, byteLock(unix.F_WRLCK, startByte)); err != nil {
		return fmt.Errorf("waiting for the process that starts nvmecr serve: %w", err)
	}
	if !isListening(group) {
		err = start()
	}
	return errors.Join(err, unix.FcntlFlock(uintptr(fd), unix.F_SETLK, byteLock(unix.F_UNLCK, startByte)))
}

// attach returns the descriptor by which this process attaches, the runtime's.
func attach(ctx context.Context, group string) (int, error) {
	for {
		dir, err := directory(group)
		if err != nil {
			return -1, err
		}
		name := filepath.Join(dir, attachFile)
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		if errors.Is(err, unix.ENOENT) { // a server that ended has just removed the directory
			continue
		}
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		fd = ownfd.Hold(fd)
		err = waitForLock(ctx, fd, unix.F_OFD_SETLK, byteLock(unix.F_RDLCK, attachByte))
		if err == nil && sameFile(fd, name) {
			return fd, nil
		}
		if err := errors.Join(err, ownfd.Close(fd)); err != nil {
			return -1, err
		}
	}
}

// waitForLock takes a lock, and waits for who has it.
func waitForLock(ctx context.Context, fd, command int, lock *unix.Flock_t) error {
	for {
		err := unix.FcntlFlock(uintptr(fd), command, lock)
		if err == nil || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return err
		}
		if !sleep(ctx, patience) {
			return context.Cause(ctx)
		}
	}
}

// isListening says that a process that lives has called ListenForHandovers.
func isListening(group string) bool {
	fd, err := DialSuccessor(group)
	if err != nil {
		return false
	}
	_ = ownfd.Close(fd) // nothing is handed over
	return true
}

// Unattached says that no process attaches, and sees to it that none begins to: Attach waits until this process has ended.
func Unattached(group string) bool {
	fd, err := unix.Open(filepath.Join(Directory(group), attachFile), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return true // without a directory nobody can
	}
	if unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, byteLock(unix.F_WRLCK, attachByte)) != nil {
		_ = unix.Close(fd)
		return false
	}
	return true // the lock ends with this process
}

// Leave removes what a server leaves on a host where nobody attaches any more, and nobody else has a lock.
func Leave(group string) {
	dir := Directory(group)
	if OfRun(group) || remove(filepath.Join(dir, attachFile)) != nil {
		return // Abandon does it, or the next one
	}
	_ = os.Remove(dir)
}
