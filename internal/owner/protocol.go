package owner

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// The header of requests and replies; see the package comment.
const (
	headerSize = 16
	magic      = "NVCO"
	version    = 1
)

// Verbs and statuses are part of the protocol and never change.
const (
	verbYield uint16 = 1

	statusOK      uint16 = 0
	statusBusy    uint16 = 1
	statusUnknown uint16 = 2
)

var errProtocol = errors.New("not a message of the partition protocol, version 1")

func putHeader(b []byte, code uint16) {
	copy(b[0:4], magic)
	binary.LittleEndian.PutUint16(b[4:], version)
	binary.LittleEndian.PutUint16(b[6:], code)
	binary.LittleEndian.PutUint32(b[8:], 0)
	binary.LittleEndian.PutUint32(b[12:], uint32(os.Getpid()))
}

func parseHeader(b []byte) (code uint16, err error) {
	if string(b[0:4]) != magic || binary.LittleEndian.Uint16(b[4:]) != version || binary.LittleEndian.Uint32(b[8:]) != 0 {
		return 0, errProtocol
	}
	return binary.LittleEndian.Uint16(b[6:]), nil
}

// serve listens on the socket. The caller has the lock, so that a socket that
// is there was left behind.
func (l *Lock) serve() error {
	name := l.path + ".sock"
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// Not of package net, whose sockets have the numbers they come with.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	fd = ownfd.Hold(fd)
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		return errors.Join(err, ownfd.Close(fd))
	}
	l.listen = os.NewFile(uintptr(fd), name)
	go l.accept(l.listen)
	return nil
}

// accept serves who comes, until the socket is closed.
func (l *Lock) accept(listen *os.File) {
	raw, err := listen.SyscallConn()
	for err == nil {
		var fd int
		var failed error
		err = raw.Read(func(on uintptr) bool {
			fd, _, failed = unix.Accept4(int(on), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			return failed != unix.EAGAIN
		})
		switch {
		case err != nil:
		case failed != nil: // out of descriptors: those who ask keep asking
			time.Sleep(patience)
		default:
			go l.answer(os.NewFile(uintptr(ownfd.Hold(fd)), listen.Name()))
		}
	}
}

// answer serves one connection.
func (l *Lock) answer(conn *os.File) {
	defer ownfd.CloseFile(conn)
	if !samePeer(conn) {
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	var b [headerSize]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return
	}
	status := statusUnknown
	if verb, err := parseHeader(b[:]); err == nil && verb == verbYield {
		status = l.yield()
	}
	putHeader(b[:], status)
	_, _ = conn.Write(b[:]) // one that has gone away needs no answer
}

func (l *Lock) yield() uint16 {
	l.yielding.Lock()
	defer l.yielding.Unlock()
	if l.onYield == nil || !l.onYield() {
		return statusBusy
	}
	_ = l.Release() // its caller, if any, gets the error
	return statusOK
}

// samePeer reports whether the other end is a process of this user (or root).
func samePeer(conn *os.File) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var sockErr error
	err = raw.Control(func(fd uintptr) { cred, sockErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err == nil && sockErr == nil && (int(cred.Uid) == os.Geteuid() || cred.Uid == 0)
}

// ask sends the verb yield to the socket at name and waits for the answer, or
// until the lock is free (the owner died, but a child of it may hold the
// connection open), or ctx ends.
func ask(ctx context.Context, name string, free func() bool) (status uint16, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", name)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	var b [headerSize]byte
	putHeader(b[:], verbYield)
	if _, err := conn.Write(b[:]); err != nil {
		return 0, err
	}
	for n := 0; n < headerSize; {
		_ = conn.SetReadDeadline(time.Now().Add(5 * patience))
		k, err := conn.Read(b[n:])
		n += k
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, err
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case free():
			return 0, errors.New("the owner has ended")
		}
	}
	status, err = parseHeader(b[:])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return status, nil
}
