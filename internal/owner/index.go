package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// indexFile is the socket of the index of the job's tree, in the directory of its run's group.
const indexFile = "tree.sock"

// ListenForIndex creates the socket on which processes of the group's run on this host reach the index of the job's
// tree. The caller must have called ListenForHandovers.
func ListenForIndex(group string) (*net.UnixListener, error) {
	dir, err := directory(group)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(dir, indexFile)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a killed server
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket of the index: %w", err)
	}
	return l, nil
}

// window is the memory that the index shares (ShareWindow), or nil.
func DialIndex(group string, size int, patience time.Duration) (fd int, window []byte, err error) {
	if fd, err = dial(group, indexFile, unix.SOCK_STREAM); err != nil {
		return -1, nil, err
	}
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err == nil {
		window, err = receiveWindow(fd, size)
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, new(unix.Timeval))
	}
	if err != nil {
		return -1, nil, errors.Join(fmt.Errorf("the index of the job's files does not introduce itself: %w", err), ownfd.Close(fd))
	}
	return fd, window, nil
}
