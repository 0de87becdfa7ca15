package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// indexFile is where the index of the job's tree listens, in the directory of its run's group.
const indexFile = "tree.sock"

// ListenForIndex makes the socket on which the processes of the group's run on this host reach the index of the job's tree. Only who
// has ListenForHandovers may call it.
func ListenForIndex(group string) (*net.UnixListener, error) {
	dir, err := directory(group)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(dir, indexFile)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // of one that was killed
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket of the index: %w", err)
	}
	return l, nil
}

// DialIndex connects to what ListenForIndex has made, if that is of this user. The descriptor, a stream, is the runtime's (ownfd).
func DialIndex(group string) (int, error) { return dial(group, indexFile, unix.SOCK_STREAM) }
