package owner

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// The header of requests and replies; see the package comment.
const (
	headerSize = 16
	magic      = "NVCO"
	version    = 1
	maxText    = 128 << 10 // the limit of a variable of the environment
	maxReason  = 1024      // reason of a refusal
)

// Verbs and statuses are part of the protocol and never change.
const (
	verbYield  uint16 = 1
	verbDivide uint16 = 2

	statusOK      uint16 = 0
	statusBusy    uint16 = 1
	statusUnknown uint16 = 2
	statusRefused uint16 = 3
)

var errProtocol = errors.New("not a message of the partition protocol, version 1")

// newMessage returns a request or a reply.
func newMessage(code uint16, what string) []byte {
	b := make([]byte, headerSize, headerSize+len(what))
	copy(b[0:4], magic)
	binary.LittleEndian.PutUint16(b[4:], version)
	binary.LittleEndian.PutUint16(b[6:], code)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(what)))
	binary.LittleEndian.PutUint32(b[12:], uint32(os.Getpid()))
	return append(b, what...)
}

// readMessage reads a message with read, which fills its buffer.
func readMessage(read func([]byte) error) (code uint16, what string, err error) {
	var b [headerSize]byte
	if err := read(b[:]); err != nil {
		return 0, "", err
	}
	n := binary.LittleEndian.Uint32(b[8:])
	if string(b[0:4]) != magic || binary.LittleEndian.Uint16(b[4:]) != version || n > maxText {
		return 0, "", errProtocol
	}
	rest := make([]byte, n)
	if err := read(rest); err != nil {
		return 0, "", err
	}
	return binary.LittleEndian.Uint16(b[6:]), string(rest), nil
}

// serve listens on the socket. The caller has the lock, so that a socket that
// is there was left behind.
func (l *Lock) serve() error {
	name := l.path + ".sock"
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listen, err := listenAt(name)
	if err != nil {
		return err
	}
	l.listen = listen
	go accept(listen, l.answer)
	return nil
}

// listenAt returns a listening socket. It does not use package net, which cannot choose the number of the descriptor.
func listenAt(name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	fd = ownfd.Hold(fd)
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		return nil, errors.Join(err, ownfd.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// accept calls answer for each connection, on a goroutine of its own, until the socket is closed.
func accept(listen *os.File, answer func(conn *os.File)) {
	raw, err := listen.SyscallConn()
	for err == nil {
		var fd int
		var failed error
		err = raw.Read(func(on uintptr) bool {
			fd, failed = ownfd.Open(func() (int, error) {
				fd, _, err := unix.Accept4(int(on), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
				return fd, err
			})
			return failed != unix.EAGAIN
		})
		switch {
		case err != nil:
		case failed != nil: // out of descriptors: clients try again
			time.Sleep(retryPause)
		default:
			go answer(os.NewFile(uintptr(fd), listen.Name()))
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
	verb, what, err := readMessage(func(b []byte) error {
		_, err := io.ReadFull(conn, b)
		return err
	})
	status, text := statusUnknown, ""
	switch {
	case errors.Is(err, errProtocol):
	case err != nil:
		return
	case verb == verbYield && what == "":
		status = l.yield()
	case verb == verbDivide && len(what) >= 4:
		status, text = l.divide(binary.LittleEndian.Uint32([]byte(what)), what[4:])
	}
	_ = send(conn, newMessage(status, text)) // fails if the peer has ended
}

// OnDivide sets the function that divides the store among a number of ranks, by a mapping, when another process
// requests that. It is called on a goroutine of the package, not at the same time as onYield. syscall.EBUSY makes the
// other process ask again, which is also the answer until OnDivide is called.
func (l *Lock) OnDivide(f func(ranks uint32, mapping string) error) {
	l.onDivide.Store(&f) // without l.asked: onYield may be waiting for the caller
}

func (l *Lock) divide(ranks uint32, mapping string) (status uint16, text string) {
	l.asked.Lock()
	defer l.asked.Unlock()
	onDivide := l.onDivide.Load()
	if onDivide == nil {
		return statusBusy, ""
	}
	err := (*onDivide)(ranks, mapping)
	switch {
	case err == nil:
		return statusOK, ""
	case errors.Is(err, syscall.EBUSY):
		return statusBusy, ""
	}
	text = err.Error()
	return statusRefused, text[:min(len(text), maxReason)]
}

func (l *Lock) yield() uint16 {
	l.asked.Lock()
	defer l.asked.Unlock()
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

// ask sends a request to the socket at name and waits for the answer, or
// until the lock is free (the owner died, but a child of it may hold the
// connection open), or ctx ends.
func ask(ctx context.Context, name string, request []byte, free func() bool) (status uint16, text string, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", name)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	if err := send(conn.(*net.UnixConn), request); err != nil {
		return 0, "", err
	}
	status, text, err = readMessage(func(b []byte) error {
		for n := 0; n < len(b); {
			_ = conn.SetReadDeadline(time.Now().Add(5 * retryPause))
			k, err := conn.Read(b[n:])
			n += k
			switch {
			case err == nil:
			case !errors.Is(err, os.ErrDeadlineExceeded):
				return err
			case ctx.Err() != nil:
				return ctx.Err()
			case free():
				return errors.New("the owner has ended")
			}
		}
		return nil
	})
	if err != nil {
		return 0, "", fmt.Errorf("%s: %w", name, err)
	}
	return status, text, nil
}

// send writes a message without SIGPIPE if the other end has gone. A thread of an application blocks its signals while it is in a call of the
// library, and would be killed by SIGPIPE when the call returns.
func send(conn syscall.Conn, b []byte) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		b, failed = sendSome(int(fd), b)
		return failed != unix.EAGAIN
	})
	return errors.Join(err, failed)
}

// sendSome writes what the socket takes, and returns the rest.
func sendSome(fd int, b []byte) (rest []byte, err error) {
	for len(b) > 0 {
		n, err := unix.SendmsgN(fd, b, nil, nil, unix.MSG_NOSIGNAL)
		switch {
		case err == nil:
			b = b[n:]
		case err != unix.EINTR:
			return b, err
		}
	}
	return nil, nil
}
