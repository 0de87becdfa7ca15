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
// all processes that attach, for reading, and by a server that ends, for writing; startByte by the process that starts a server.
const attachFile = "attach"

const (
	attachByte = iota // F_OFD_SETLK of fcntl(2): not released when a forked child closes its copy of the descriptor
	startByte         // F_SETLK: children do not inherit the lock
)

func byteLock(kind int16, at int64) *unix.Flock_t {
	return &unix.Flock_t{Type: kind, Start: at, Len: 1}
}

// OfRun reports whether `nvmecr run` has started the group's run on this host, by Prepare.
func OfRun(group string) bool {
	_, err := os.Lstat(filepath.Join(Directory(group), runFile))
	return err == nil
}

// Attach makes sure that the group's run is served on this host while this process lives.
// If no process has called ListenForHandovers it calls start, in one process at a time; start returns when a process
// has. Attach waits for other processes until ctx ends.
//
// Attach does not check again later. A process with files for a server that was killed meanwhile gets an error of
// DialSuccessor.
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

// attach returns the descriptor whose lock marks this process as attached. The runtime owns the descriptor.
func attach(ctx context.Context, group string) (int, error) {
	for {
		dir, err := directory(group)
		if err != nil {
			return -1, err
		}
		name := filepath.Join(dir, attachFile)
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		if errors.Is(err, unix.ENOENT) { // an ending server has just removed the directory
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

// waitForLock takes a lock, and waits for its holder.
func waitForLock(ctx context.Context, fd, command int, lock *unix.Flock_t) error {
	for {
		err := unix.FcntlFlock(uintptr(fd), command, lock)
		if err == nil || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return err
		}
		if !sleep(ctx, retryPause) {
			return context.Cause(ctx)
		}
	}
}

// isListening reports whether a living process has called ListenForHandovers.
func isListening(group string) bool {
	fd, err := DialSuccessor(group)
	if err != nil {
		return false
	}
	_ = ownfd.Close(fd) // only a test of the socket
	return true
}

// Unattached reports whether no process is attached. If it returns true no process can attach before this process has
// ended: Attach waits for that.
func Unattached(group string) bool {
	fd, err := unix.Open(filepath.Join(Directory(group), attachFile), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return true // without a directory no process can
	}
	if unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, byteLock(unix.F_WRLCK, attachByte)) != nil {
		_ = unix.Close(fd)
		return false
	}
	return true // the lock ends with this process
}

// RemoveUnattached removes the directory of a group after its server, if no process is attached or has a lock.
func RemoveUnattached(group string) {
	dir := Directory(group)
	if OfRun(group) || remove(filepath.Join(dir, attachFile)) != nil {
		return // RemoveGroup removes it, or the next run does
	}
	_ = os.Remove(dir)
}
