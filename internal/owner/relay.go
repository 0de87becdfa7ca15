package owner

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// A process may have taken on to write to files what other processes write to sockets (posixshim). Who opens a file, or looks at
// its size, has to find what was written before, also by a process that has ended since. Each process that has such sockets
// therefore listens in the directory relayDir of its group: it ends a connection when it has written what was there.

// relayDir is in the directory of a group, while a process relays.
const relayDir = "relay"

// Relays are the processes of a run on this host that relay. The methods may be called from any goroutine.
type Relays struct {
	Group   string
	Timeout time.Duration // how long Await waits for one process, once

	mu     sync.Mutex
	listen *os.File
	file   string // of this process's socket, in relayDir

	silent sync.Map // files of those that have not answered
}

var relayNumber atomic.Uint64 // of those of this process

// Listen makes this process one of them, until Close: finish writes to the files what there is.
func (c *Relays) Listen(finish func()) error {
	dir, err := directory(c.Group)
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, relayDir)
	file := strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(relayNumber.Add(1), 10)
	hidden := filepath.Join(dir, "."+file) // until it listens
	var listen *os.File
	for range 3 { // Close of another process may remove the directory
		if err = os.Mkdir(dir, 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			listen, err = listenAt(hidden)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := os.Rename(hidden, filepath.Join(dir, file)); err != nil {
		return errors.Join(err, ownfd.CloseFile(listen))
	}
	c.mu.Lock()
	c.listen, c.file = listen, file
	c.mu.Unlock()
	go accept(listen, func(conn *os.File) {
		defer ownfd.CloseFile(conn)
		if samePeer(conn) {
			finish()
		}
	})
	return nil
}

// Close undoes Listen.
func (c *Relays) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listen == nil {
		return nil
	}
	dir := filepath.Join(Directory(c.Group), relayDir)
	_ = os.Remove(filepath.Join(dir, c.file))
	_ = os.Remove(dir) // unless another process relays, too
	err := ownfd.CloseFile(c.listen)
	c.listen, c.file = nil, ""
	return err
}

// Await returns when the others have written what they had when it was called. It costs one system call where there are none. One
// that does not answer in time is not waited for again, and one that is stopped not at all.
func (c *Relays) Await() {
	if c.Group == "" {
		return
	}
	dir := filepath.Join(Directory(c.Group), relayDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	c.mu.Lock()
	own := c.file
	c.mu.Unlock()
	for _, e := range entries {
		if _, silent := c.silent.Load(e.Name()); !silent && e.Name() != own && !strings.HasPrefix(e.Name(), ".") {
			c.await(e.Name())
		}
	}
}

// await waits for one process.
func (c *Relays) await(file string) {
	fd, err := dial(c.Group, filepath.Join(relayDir, file), unix.SOCK_STREAM)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) { // it was killed
			_ = os.Remove(filepath.Join(Directory(c.Group), relayDir, file))
		}
		return
	}
	defer func() { _ = ownfd.Close(fd) }()
	end := time.Now().Add(cmp.Or(c.Timeout, time.Minute))
	slice := unix.NsecToTimeval(patience.Nanoseconds())
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &slice) != nil {
		return
	}
	for {
		switch _, err := unix.Read(fd, make([]byte, 1)); {
		case err == unix.EINTR, err == unix.EAGAIN && !stopped(file) && time.Now().Before(end):
		case err == unix.EAGAIN && !stopped(file):
			c.silent.Store(file, true)
			return
		default:
			return
		}
	}
}

// stopped says whether somebody has stopped (SIGSTOP) the process that a socket in relayDir is of: what it has does not come for now.
func stopped(file string) bool {
	pid, _, _ := strings.Cut(file, "-")
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	state, found := bytes.CutPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	return found && len(state) > 0 && (state[0] == 'T' || state[0] == 't')
}
