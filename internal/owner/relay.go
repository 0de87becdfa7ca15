package owner

import (
	"bytes"
	"cmp"
	"errors"
	"io"
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

// A process may relay data from sockets, which other processes write to, into files (posixshim). A process that opens
// such a file, or reads its size, has to see all data written before, also by processes that have ended. So each
// relaying process listens in the directory relayDir of its group. It answers each byte on a connection with a byte
// when it has written all data that was in its sockets. Connections are kept.

// relayDir is in the directory of a group, while a process relays.
const relayDir = "relay"

// Relays are the processes of a run on this host that relay data from sockets to files. The methods may be called from
// any goroutine.
type Relays struct {
	Group   string
	Timeout time.Duration // how long Await waits for one process, once

	mu     sync.Mutex
	listen *os.File
	file   string // name of this process's socket in relayDir

	awaiting sync.Mutex          // held by Await; guards the fields below
	asked    map[string]int      // connections to others, by file
	silent   map[string]struct{} // files of relays that have not answered
}

var relayNumber atomic.Uint64 // number of the next relay of this process

// Listen adds this process to the relays, until Close. finish writes the data in its sockets to the files.
func (c *Relays) Listen(finish func()) error {
	dir, err := directory(c.Group)
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, relayDir)
	file := strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(relayNumber.Add(1), 10)
	hidden := filepath.Join(dir, "."+file) // until the socket listens
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
		b := make([]byte, 1)
		for samePeer(conn) {
			if _, err := conn.Read(b); err != nil {
				return
			}
			finish()
			if send(conn, []byte{0}) != nil {
				return
			}
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
	_ = os.Remove(dir) // fails if another process relays, too
	err := ownfd.CloseFile(c.listen)
	c.listen, c.file = nil, ""
	return err
}

// Await waits until other relays have written the data that was in their sockets when it was called. Without relays
// it costs one system call. A relay that has not answered in time is not waited for again, a stopped one not at all.
func (c *Relays) Await() {
	if c.Group == "" {
		return
	}
	dir := filepath.Join(Directory(c.Group), relayDir)
	entries, _ := os.ReadDir(dir) // none if there is no directory
	c.mu.Lock()
	own := c.file
	c.mu.Unlock()
	c.awaiting.Lock()
	defer c.awaiting.Unlock()
	there := make(map[string]struct{}, len(entries))
	for _, e := range entries {
		file := e.Name()
		there[file] = struct{}{}
		if _, silent := c.silent[file]; !silent && file != own && !strings.HasPrefix(file, ".") {
			c.await(file)
		}
	}
	for file := range c.asked {
		if _, is := there[file]; !is {
			c.hangUp(file)
		}
	}
}

// await waits for the relay of one process.
func (c *Relays) await(file string) {
	for {
		_, kept := c.asked[file]
		if !kept && !c.connect(file) {
			return
		}
		err := c.ask(file)
		if err == nil {
			return
		}
		c.hangUp(file)
		if !kept || err == unix.EAGAIN {
			return
		}
	}
}

// connect connects to one process.
func (c *Relays) connect(file string) bool {
	fd, err := dial(c.Group, filepath.Join(relayDir, file), unix.SOCK_STREAM)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) { // it was killed
			_ = os.Remove(filepath.Join(Directory(c.Group), relayDir, file))
		}
		return false
	}
	slice := unix.NsecToTimeval(retryPause.Nanoseconds())
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &slice) != nil {
		_ = ownfd.Close(fd)
		return false
	}
	if c.asked == nil {
		c.asked, c.silent = map[string]int{}, map[string]struct{}{}
	}
	c.asked[file] = fd
	return true
}

func (c *Relays) hangUp(file string) {
	_ = ownfd.Close(c.asked[file])
	delete(c.asked, file)
}

// ask waits until one process has answered. After an error the connection is not used again.
func (c *Relays) ask(file string) error {
	fd := c.asked[file]
	if _, err := sendSome(fd, []byte{0}); err != nil {
		return err
	}
	end := time.Now().Add(cmp.Or(c.Timeout, time.Minute))
	for b := make([]byte, 1); ; {
		switch n, err := unix.Read(fd, b); {
		case n == 1:
			return nil
		case err == nil:
			return io.EOF
		case err == unix.EINTR, err == unix.EAGAIN && !stopped(file) && time.Now().Before(end):
		case err == unix.EAGAIN && !stopped(file):
			c.silent[file] = struct{}{}
			return err
		default:
			return err
		}
	}
}

// stopped reports whether the process of a socket in relayDir is stopped (SIGSTOP): its data will not come for now.
func stopped(file string) bool {
	pid, _, _ := strings.Cut(file, "-")
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	state, found := bytes.CutPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	return found && len(state) > 0 && (state[0] == 'T' || state[0] == 't')
}
