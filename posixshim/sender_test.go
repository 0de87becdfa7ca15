//go:build !race

package posixshim_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/posixshim"
)

// patience is the time-out of both ends of a connection.
var patience = unix.NsecToTimeval(posixshim.Hang.Nanoseconds())

// listener returns a socket that listens at a name.
func listener(t *testing.T, name string) *os.File {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: name}))
	require.NoError(t, unix.Listen(fd, 1))
	return f
}

// connectionOf accepts the first connection to a listener.
func connectionOf(listener int) (int, error) {
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}, int(posixshim.Hang.Milliseconds())); err != nil {
		return -1, err
	}
	if err := unix.SetNonblock(listener, true); err != nil { // after the poll a connection is pending, unless there was a time-out
		return -1, err
	}
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("nobody connects: %w", err)
	}
	return fd, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
}

// replay is a server that expects the requests of the golden file and sends the replies from it. For an open file it
// sends the descriptor stands.
func replay(server, stands *os.File, golden string) error {
	defer server.Close()
	conn, err := connectionOf(int(server.Fd()))
	if err != nil {
		return err
	}
	defer unix.Close(conn)
	for _, exchange := range strings.Split(golden, "= ")[1:] {
		name, _, _ := strings.Cut(exchange, "\n")
		want, reply := part(exchange, ">"), part(exchange, "<")
		got := make([]byte, len(want))
		n, _, err := unix.Recvfrom(conn, got, unix.MSG_WAITALL)
		if string(got[:max(n, 0)]) != string(want) {
			return fmt.Errorf("%s: request %x (%v), not %x: %s", name, got[:max(n, 0)], err, want, posixshim.GoldenLayout)
		}
		var rights []byte
		if name == "open" {
			rights = unix.UnixRights(int(stands.Fd()))
		}
		if _, err := unix.SendmsgN(conn, reply, rights, nil, unix.MSG_NOSIGNAL); err != nil {
			return err
		}
	}
	if n, _, _ := unix.Recvfrom(conn, make([]byte, 1), 0); n != 0 {
		return fmt.Errorf("the connection goes on after the last reply")
	}
	return nil
}

// serverOf makes the sockets of a server and of its open file.
func serverOf(t *testing.T, file int64) (server, stands *os.File) {
	number := uint64(0x1000000000000000) | uint64(os.Getpid())
	return listener(t, fmt.Sprintf("@nvmecr:%016x", number)),
		listener(t, fmt.Sprintf("@nvmecr:%016x:%016x:NAME", number, file))
}

// part returns the bytes of the lines of text that begin with mark.
func part(text, mark string) (bytes []byte) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); f[0] == mark {
			b, _ := hex.DecodeString(f[2])
			bytes = append(bytes, b...)
		}
	}
	return bytes
}

// TestGoldenSender compares the requests of the C code with the golden file, and checks the results of calls for the
// replies in it.
func TestGoldenSender(t *testing.T) {
	golden, err := os.ReadFile(posixshim.GoldenMessages)
	require.NoError(t, err)
	server, stands := serverOf(t, 0x1_0000_0002)
	cmd := newStore(t).command(compile(t, "gcc", "messages.c"))
	cmd.Stdin = stands
	done := make(chan error)
	go func() { done <- replay(server, stands, string(golden)) }()
	stdout, stderr, err := finish(t, cmd)
	require.NoError(t, <-done)
	require.NoError(t, err)
	assert.Empty(t, stderr)
	assert.Equal(t, `write(0, "content", 7) = 7
pread(0, buf, 5, 0x0102030405060708) = 3
strcmp(buf, "ent--") = 0
open("/nvmecr/a", O_RDWR | O_CREAT, 0666) >= 0 = 1
renameat2(AT_FDCWD, "/nvmecr/from", AT_FDCWD, "/nvmecr/to", RENAME_NOREPLACE) = -1 EEXIST
access("/nvmecr/out", F_OK) = 0
fstatvfs(0, &st) = 0
st.f_blocks = 3
st.f_namemax = 11
fchmod(0, 0600) = 0
fsync(0) = -1 EMFILE
`, stdout)
}

// TestAnswerThatBreaksOff checks that the client leaves no descriptor open if its server ends in the middle of a
// reply.
func TestAnswerThatBreaksOff(t *testing.T) {
	server, stands := serverOf(t, 1)
	cmd := newStore(t).command(compile(t, "gcc", "messages.c"), "open")
	cmd.Stdin = stands
	done := make(chan error)
	go func() {
		defer server.Close()
		conn, err := connectionOf(int(server.Fd()))
		if err == nil {
			_, _, err = unix.Recvfrom(conn, make([]byte, 100), 0)
			_, sent := unix.SendmsgN(conn, make([]byte, 8), unix.UnixRights(int(stands.Fd())), nil, unix.MSG_NOSIGNAL)
			err = errors.Join(err, sent, unix.Close(conn))
		}
		done <- err
	}()
	stdout, stderr, err := finish(t, cmd)
	require.NoError(t, <-done)
	require.NoError(t, err)
	assert.Equal(t, "open(\"/nvmecr/a\", O_RDONLY) = -1 EIO\ndescriptors() - before = 0\n", stdout)
	assert.Contains(t, stderr, "cannot reach the process that has its open files")
}
