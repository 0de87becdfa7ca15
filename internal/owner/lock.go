package owner

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// MaxKey is the longest key: a socket's path has at most 107 bytes.
const MaxKey = 60

// MaxNote is the longest note of an owner, in bytes.
const MaxNote = 64

// retryPause is the interval at which a waiting process tries the lock.
const retryPause = 20 * time.Millisecond

// A Lock is the ownership of one key by this process.
type Lock struct {
	group   string
	path    string // without .lock or .sock
	note    string
	fd      int
	listen  *os.File // a socket
	onYield func() bool

	asked    sync.Mutex                                               // held while onYield or onDivide runs
	onDivide atomic.Pointer[func(ranks uint32, mapping string) error] // set by OnDivide, at any time
	release  sync.Once
	err      error // of the release, once that is done
}

// A BusyError says that another process owns the key. It is syscall.EBUSY.
type BusyError struct {
	Key string // or a more descriptive name, which says what it is
	PID int    // of the owner, 0 if not known
	// Note is the owner's note for processes that find the key busy.
	Note string
	// Silent is true if the owner did not answer in time, false if it cannot yield now.
	Silent bool
}

// Error names the owner.
func (e *BusyError) Error() string {
	who := "another process"
	switch {
	case e.PID == os.Getpid():
		return fmt.Sprintf("%s: this process has it already", e.Key)
	case e.PID != 0:
		who = fmt.Sprintf("process %d", e.PID)
	}
	if e.Silent {
		return fmt.Sprintf("%s: %s has it and does not answer; end that process", e.Key, who)
	}
	return fmt.Sprintf("%s: %s is writing to it; wait for it to close its files or to end", e.Key, who)
}

// Unwrap returns syscall.EBUSY.
func (e *BusyError) Unwrap() error { return syscall.EBUSY }

// held has the paths of the lock files that this process holds or tries to hold; guarded by heldMu.
var (
	heldMu sync.Mutex
	held   = map[string]bool{}
)

// Acquire makes this process the owner of key in a group of keys, which are up to
// MaxKey and MaxGroup of A-Z a-z 0-9 . _ -; a group may be empty. It asks the process that is the owner to yield, and
// waits while that one is ending or does not answer, until ctx ends.
//
// onYield is called when another process asks. It either gives up what the
// lock guards and returns true, then the lock is released (onYield may do that
// itself), or returns false, which the other process sees as busy. nil always
// refuses.
//
// Errors: a *BusyError when the owner is this process, said that it cannot
// yield, or did not answer; otherwise what is wrong with the directory.
//
// note, of at most MaxNote bytes, is what those others find in their BusyError.
func Acquire(ctx context.Context, group, key, note string, onYield func() bool) (*Lock, error) {
	if err := errors.Join(checkKey(key), checkGroup(group)); err != nil {
		return nil, err
	}
	if len(note) > MaxNote {
		return nil, fmt.Errorf("a note of %d bytes about partition %s: %w", len(note), key, syscall.EINVAL)
	}
	dir, err := directory(group)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, key)
	swept.Do(func() { sweep(dir, time.Now().Add(-litterAge)) })
	heldMu.Lock()
	busy := held[path]
	held[path] = true
	heldMu.Unlock()
	if busy {
		return nil, &BusyError{Key: "partition " + key, PID: os.Getpid()}
	}
	l := &Lock{group: group, path: path, note: note, fd: -1, onYield: onYield}
	if err := l.acquire(ctx, key); err != nil {
		l.forget()
		return nil, err
	}
	return l, nil
}

// Divide asks the owner of a key to divide the store of the partition among so many
// ranks, by a mapping (the text of a balancer.Plan), and waits until that is done. See Acquire for key and group.
//
// Errors: a *RefusedError with what the owner said; a *BusyError if it cannot at the
// moment, does not know how, or there is no owner any more: try Acquire, and ask again.
func Divide(ctx context.Context, group, key string, ranks uint32, mapping string) error {
	if err := errors.Join(checkKey(key), checkGroup(group)); err != nil {
		return err
	}
	dir, err := directory(group)
	if err != nil {
		return err
	}
	l := &Lock{path: filepath.Join(dir, key)}
	number := binary.LittleEndian.AppendUint32(nil, ranks)
	status, text, err := ask(ctx, l.path+".sock", newMessage(verbDivide, string(number)+mapping), l.free)
	switch {
	case err == nil && status == statusOK:
		return nil
	case err == nil && status == statusRefused:
		return &RefusedError{Reason: text}
	}
	return &BusyError{Key: "partition " + key, Silent: err != nil}
}

// A RefusedError is the reason for which the owner of a partition refused a request.
type RefusedError struct{ Reason string }

// Error returns the owner's text.
func (e *RefusedError) Error() string { return e.Reason }

func (l *Lock) acquire(ctx context.Context, key string) error {
	for {
		busy, err := l.try()
		if errors.Is(err, fs.ErrNotExist) && l.group != "" { // the last owner has removed the directory
			if _, err = directory(l.group); err == nil {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("lock of partition %s: %w", key, err)
		}
		if l.fd >= 0 {
			break
		}
		status, _, err := ask(ctx, l.path+".sock", newMessage(verbYield, ""), l.free)
		if err == nil && status != statusOK {
			busy.Key = key
			return &busy
		}
		// The owner has yielded, is ending, or is just starting: try again.
		if !sleep(ctx, retryPause) {
			return &BusyError{Key: "partition " + key, PID: busy.PID, Silent: true}
		}
	}
	if err := l.serve(); err != nil {
		return fmt.Errorf("socket of partition %s: %w", key, err)
	}
	return nil
}

// try takes the lock if it is free: then l.fd is set. Otherwise busy says who
// has it, as far as that is known.
func (l *Lock) try() (busy BusyError, err error) {
	name := l.path + ".lock"
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return busy, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	fd = ownfd.Hold(fd)
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &whole)
	// The last owner may have removed the name since it was opened.
	if err == nil && sameFile(fd, name) {
		_ = unix.Fchmod(fd, unix.S_ISVTX|0o600) // keeps cleaners of /tmp away; optional
		l.fd = fd
		return busy, l.writeNote()
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		whole = unix.Flock_t{Type: unix.F_WRLCK}
		if unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &whole) == nil && whole.Type != unix.F_UNLCK {
			busy.PID = int(whole.Pid)
		}
		busy.Note = readNote(fd)
		err = nil
	}
	return busy, errors.Join(err, ownfd.Close(fd))
}

// writeNote puts the note into the lock file, whole: a reader sees all of it,
// padded with zeros, or what an earlier owner has left.
func (l *Lock) writeNote() error {
	var b [MaxNote]byte
	copy(b[:], l.note)
	_, err := unix.Pwrite(l.fd, b[:], 0)
	return err
}

func readNote(fd int) string {
	var b [MaxNote]byte
	n, _ := unix.Pread(fd, b[:], 0)
	note, _, _ := strings.Cut(string(b[:max(n, 0)]), "\x00")
	return note
}

// free reports whether no process has the lock. Only for a path that this process
// has in held but does not own: closing the file would drop the lock.
func (l *Lock) free() bool {
	fd, err := unix.Open(l.path+".lock", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return true // let try find out
	}
	defer unix.Close(fd)
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &whole)
	return err != nil || whole.Type == unix.F_UNLCK
}

// Release gives up the ownership. Later calls return the result of the first one.
func (l *Lock) Release() error {
	l.release.Do(func() {
		// While this process still has the lock: the next owner creates its own files as soon as it has it.
		l.err = errors.Join(remove(l.path+".sock"), ownfd.CloseFile(l.listen), remove(l.path+".lock"))
		l.forget()
		if l.group != "" {
			_ = os.Remove(filepath.Dir(l.path)) // fails if it has other files
		}
	})
	return l.err
}

// forget closes the lock file, which drops the lock, and leaves the table.
func (l *Lock) forget() {
	heldMu.Lock()
	defer heldMu.Unlock()
	if l.fd >= 0 {
		_ = ownfd.Close(l.fd)
	}
	delete(held, l.path)
}

func remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sameFile reports whether name still leads to the file of fd.
func sameFile(fd int, name string) bool {
	var a, b unix.Stat_t
	return unix.Fstat(fd, &a) == nil && unix.Lstat(name, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// MaxGroup is the longest name of a group.
const MaxGroup = 16

func checkGroup(group string) error {
	if len(group) > MaxGroup || group != "" && checkKey(group) != nil {
		return fmt.Errorf("%q cannot be a group of partitions: %w", group, syscall.EINVAL)
	}
	return nil
}

func checkKey(key string) error {
	ok := len(key) >= 1 && len(key) <= MaxKey && key[0] != '.'
	for i := 0; ok && i < len(key); i++ {
		c := key[i]
		ok = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._-", c) >= 0
	}
	if !ok {
		return fmt.Errorf("%q cannot be the key of a partition: %w", key, syscall.EINVAL)
	}
	return nil
}

// sleep waits d and returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
