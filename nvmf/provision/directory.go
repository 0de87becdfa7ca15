package provision

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenDirectory opens a directory of namespaces, and creates it if it does not exist.
// The directory must belong to this user or to root, and no other user may write to it.
// Otherwise that user could replace namespaces by other files, or by links to files of
// others.
func OpenDirectory(path string) (*os.File, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("directory of namespaces: %w", err)
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("directory of namespaces: %w", err)
	}
	var st unix.Stat_t
	err = unix.Fstat(int(dir.Fd()), &st)
	switch {
	case err != nil:
		err = fmt.Errorf("directory of namespaces %s: %w", path, err)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		err = fmt.Errorf("%w: directory of namespaces %s belongs to user %d, who could exchange what is in it: it has to be yours or root's, `chown %d %s`, or give another",
			ErrInvalid, path, st.Uid, os.Geteuid(), path)
	case st.Mode&0o022 != 0:
		err = fmt.Errorf("%w: directory of namespaces %s has mode %04o, with which others could exchange what is in it: `chmod go-w %s`, or give another",
			ErrInvalid, path, st.Mode&0o7777, path)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}
