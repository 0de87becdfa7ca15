package owner

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// base is where directory puts the user's directory; the tests put it
// elsewhere.
var base = "/tmp"

// directory returns the directory of the locks, creating it. A directory that
// another user made, or can write to, is refused.
func directory() (string, error) {
	dir := base + "/nvmecr-" + strconv.Itoa(os.Geteuid())
	if err := unix.Mkdir(dir, 0o700); err != nil && err != unix.EEXIST {
		return "", fmt.Errorf("directory of the partition locks: %w", &fs.PathError{Op: "mkdir", Path: dir, Err: err})
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", fmt.Errorf("directory of the partition locks: %w", &fs.PathError{Op: "stat", Path: dir, Err: err})
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return "", fmt.Errorf("directory of the partition locks: %s is not a directory of mode 0700 of user %d; remove it: %w",
			dir, os.Geteuid(), syscall.EACCES)
	}
	return dir, nil
}

// litterAge is when files nobody has locked are taken for left behind.
const litterAge = 24 * time.Hour

// swept: once per process is enough.
var swept sync.Once

// sweep removes the files of owners that were killed: locks from before, which
// it can take. Errors do not matter, the next process tries again.
func sweep(dir string, before time.Time) {
	// All the time, so that no lock of this process is lost: closing any
	// descriptor of its file would drop it.
	heldMu.Lock()
	defer heldMu.Unlock()
	names, _ := filepath.Glob(filepath.Join(dir, "*.lock"))
	for _, name := range names {
		l := &Lock{path: strings.TrimSuffix(name, ".lock"), fd: -1}
		if info, err := os.Lstat(name); err != nil || info.ModTime().After(before) || held[l.path] {
			continue
		}
		if _, err := l.try(); err == nil && l.fd >= 0 {
			_ = remove(l.path + ".sock")
			_ = remove(name)
			_ = ownfd.Close(l.fd)
		}
	}
}
