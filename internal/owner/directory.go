package owner

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
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

// base is the directory of the users' directories; tests change it.
var base = "/tmp"

// prefix is the prefix of the names of the user's directories.
func prefix() string { return base + "/nvmecr-" + strconv.Itoa(os.Geteuid()) }

// name returns the path of the directory of a group.
func name(group string) string {
	dir := prefix()
	if group != "" {
		dir += "-" + group
	}
	return dir
}

// directory returns the directory of a group's locks, and creates it if necessary. It refuses a directory that
// another user has created or can write to.
func directory(group string) (string, error) {
	dir := name(group)
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

// Prepare creates the directory of a group, which is in use until RemoveGroup, EndRun or the end of this process. So
// errors about the directory are found before a process needs a lock.
func Prepare(group string) error {
	if err := checkGroup(group); err != nil {
		return err
	}
	dir, err := directory(group)
	if err != nil || group == "" {
		return err
	}
	// The file keeps the last owner from removing the directory, which OtherUser needs.
	name := filepath.Join(dir, runFile)
	run, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = unix.Flock(int(run.Fd()), unix.LOCK_SH)
	}
	if err != nil {
		return fmt.Errorf("directory of the partition locks: %w", err)
	}
	if !sameFile(int(run.Fd()), name) { // sweepGroups has just removed the directory of a killed run
		_ = run.Close()
		return Prepare(group)
	}
	if old, ok := prepared.Swap(group, run); ok {
		_ = old.(*os.File).Close()
	}
	return nil
}

// prepared maps the groups that this process has prepared to their locked files (InUse).
var prepared sync.Map

// forgetRun closes the files that Prepare has opened.
func forgetRun(group string) {
	if run, ok := prepared.LoadAndDelete(group); ok {
		_ = run.(*os.File).Close()
	}
}

// InUse reports whether the process that has called Prepare lives, or any process that has attached to the run on this
// host.
func InUse(group string) bool {
	dir := Directory(group)
	if run, err := os.Open(filepath.Join(dir, runFile)); err == nil {
		defer run.Close()
		if unix.Flock(int(run.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return true
		}
	}
	file, err := os.Open(filepath.Join(dir, attachFile))
	if err != nil {
		return false
	}
	defer file.Close()
	lock := byteLock(unix.F_WRLCK, attachByte)
	return unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, lock) == nil && lock.Type != unix.F_UNLCK
}

// Directory returns the directory of a group. Prepare has created it.
func Directory(group string) string { return prefix() + "-" + group }

// HostNumber returns a number, of less than 63 bits, for the directory of a group on this host: all processes that use the same locks have the
// same one. It is 0 for no group, and if no process has created the directory.
func HostNumber(group string) uint64 {
	var st unix.Stat_t
	if group == "" || checkGroup(group) != nil || unix.Lstat(Directory(group), &st) != nil {
		return 0
	}
	h := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", group, st.Dev, st.Ino))
	return binary.NativeEndian.Uint64(h[:]) >> 2
}

// ViewName is the mount point of the view of a run, in the directory of its group.
const ViewName = "view"

// successorFile is the socket of nvmecr serve, in the directory of its run's group.
const successorFile = "serve.sock"

// ErrServed means that another process of this host listens for handovers.
var ErrServed = errors.New("another process of this host serves the run")

// A HandoverListener is a socket of ListenForHandovers.
type HandoverListener struct {
	*net.UnixListener
	dir int // locked: flock(2)
}

// Close closes the socket. Another process may then listen.
func (l *HandoverListener) Close() error {
	return errors.Join(l.UnixListener.Close(), unix.Close(l.dir))
}

// ListenForHandovers creates the socket on which processes of the group's run on this host hand over their open
// files. One process at a time can listen; for others the error is ErrServed. It also removes what killed runs have
// left on this host.
func ListenForHandovers(group string) (*HandoverListener, error) {
	dir, err := directory(group)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(fd)
		return nil, ErrServed
	}
	name := filepath.Join(dir, successorFile)
	err = remove(name) // left by a killed server
	var l *net.UnixListener
	if err == nil {
		l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: name})
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	sweepGroups(time.Now().Add(-groupAge))
	return &HandoverListener{l, fd}, nil
}

// DialSuccessor connects to the process that has called ListenForHandovers, one of this user, and returns a socket of type SOCK_SEQPACKET, for the caller to
// close (ownfd). ENOENT and ECONNREFUSED say that there is none on this host.
func DialSuccessor(group string) (int, error) {
	return dial(group, successorFile, unix.SOCK_SEQPACKET)
}

// dial connects to a socket in the directory of a group. The descriptor is the runtime's.
func dial(group, socket string, kind int) (int, error) {
	path := filepath.Join(name(group), socket)
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	fd = ownfd.Hold(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	for err == unix.EINTR {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && int(cred.Uid) != os.Geteuid() {
			err = syscall.EACCES
		}
	}
	if err != nil {
		return -1, errors.Join(&fs.PathError{Op: "connect", Path: path, Err: err}, ownfd.Close(fd))
	}
	return fd, nil
}

// runFile is in the directory of a group for as long as its run. It is empty until a
// process of the run calls Use.
const runFile = "run"

// Use records that a process of the group's run on this host has used the partition. Errors only affect the result of
// Used.
func Use(group string) {
	if group == "" || checkGroup(group) != nil {
		return
	}
	fd, err := unix.Open(filepath.Join(prefix()+"-"+group, runFile), unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return // started on another host
	}
	_, _ = unix.Write(fd, []byte("used\n"))
	_ = unix.Close(fd)
}

// Used reports whether a process of this host has called Use.
func Used(group string) bool {
	info, err := os.Lstat(filepath.Join(prefix()+"-"+group, runFile))
	return err == nil && info.Size() > 0
}

// removeGroup removes a directory, including files that killed owners have left before a time.
func removeGroup(dir string, before time.Time) {
	sweep(dir, before)
	_ = os.Remove(filepath.Join(dir, runFile))
	_ = os.Remove(filepath.Join(dir, successorFile))
	_ = os.Remove(filepath.Join(dir, indexFile))
	_ = os.Remove(filepath.Join(dir, attachFile))
	_ = os.RemoveAll(filepath.Join(dir, relayDir))
	_ = os.Remove(filepath.Join(dir, ViewName)) // fails if mounted
	_ = os.Remove(dir)                          // fails if it has a lock
}

// EndRun undoes Prepare if a server continues, which later removes the directory (RemoveUnattached).
func EndRun(group string) {
	if checkGroup(group) == nil && group != "" {
		_ = os.Remove(filepath.Join(Directory(group), runFile))
		forgetRun(group)
	}
}

// OtherUser returns the owner of the group on this host if that is another user than this process's: the process has
// changed its user. It uses the owner of the directory, not the user id in its name, because containers may map user
// ids. A group without a directory has not been used yet.
func OtherUser(group string) (uid uint32, other bool) {
	if group == "" || checkGroup(group) != nil {
		return 0, false
	}
	dirs, _ := filepath.Glob(base + "/nvmecr-*-" + group)
	for _, dir := range dirs {
		var st unix.Stat_t
		switch {
		case unix.Lstat(dir, &st) != nil:
		case int(st.Uid) == os.Geteuid():
			return 0, false
		default:
			uid, other = st.Uid, true
		}
	}
	return uid, other
}

// RemoveGroup removes the directory of a group, including files of killed owners. If it is in use the next run on
// this host removes it later.
func RemoveGroup(group string) {
	if checkGroup(group) == nil && group != "" {
		removeGroup(prefix()+"-"+group, time.Now().Add(time.Minute))
		forgetRun(group)
	}
}

// groupAge is how long the directory of a group may exist without a lock in it.
const groupAge = time.Minute

// sweepGroups removes directories of groups that are older than a time and whose processes have all ended.
func sweepGroups(before time.Time) {
	dirs, _ := filepath.Glob(prefix() + "-*")
	for _, dir := range dirs {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) == nil && int(st.Uid) == os.Geteuid() && time.Unix(st.Mtim.Unix()).Before(before) {
			sweepGroup(dir, before)
		}
	}
}

// sweepGroup removes the directory of a group unless a process of the group lives. It first takes all locks of the
// group.
func sweepGroup(dir string, before time.Time) {
	for _, l := range []struct {
		file string
		mode int
		take func(fd int) error
	}{
		{"", os.O_RDONLY, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }}, // ListenForHandovers
		{runFile, os.O_RDWR, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }},
		{attachFile, os.O_RDWR, func(fd int) error {
			return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, byteLock(unix.F_WRLCK, attachByte))
		}},
	} {
		f, err := os.OpenFile(filepath.Join(dir, l.file), l.mode|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return
		}
		defer f.Close()
		if l.take(int(f.Fd())) != nil {
			return
		}
	}
	sweep(dir, before)
	if locks, err := filepath.Glob(filepath.Join(dir, "*.lock")); err == nil && len(locks) == 0 {
		removeGroup(dir, before)
	}
}

// litterAge is the age at which unlocked files count as left behind.
const litterAge = 24 * time.Hour

// swept makes each process sweep once only.
var swept sync.Once

// sweep removes files of killed owners: locks older than a time, which it can take. Errors do not matter, since later
// processes try again.
func sweep(dir string, before time.Time) {
	// Held throughout, since closing any descriptor of a lock file would drop a lock of this process on it.
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
