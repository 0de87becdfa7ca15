package tls

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// chunk is the number of bytes that a relay moves at a time in each direction. It holds
// several TLS records, which have at most 16 KiB each.
const chunk = 256 << 10

// A relay moves the bytes of one connection. After the handshake, its goroutine alone
// accesses all fields.
type relay struct {
	net   int // the socket with TLS
	plain int // the relay's end of the socketpair
	tls   *session

	toNet, toPlain pending
	buffer         [64 << 10]byte
}

// pending holds bytes that have not been sent to a socket.
type pending struct {
	buf [chunk]byte
	b   []byte // the unsent part of buf
}

func (p *pending) empty() bool { return len(p.b) == 0 }

// send sends as many bytes as the socket accepts. A full socket is not an error.
func (p *pending) send(fd int) error {
	for !p.empty() {
		n, err := unix.SendmsgN(fd, p.b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("sending: %w", err)
		case err == nil:
			p.b = p.b[n:]
		}
	}
	return nil
}

// fromSession gets the bytes that the session wants to send to the network, once all
// earlier ones are sent.
func (p *pending) fromSession(s *session) {
	if p.empty() {
		p.b = p.buf[:s.drain(p.buf[:])]
	}
}

// errEnd: the peer of the socket has shut down its sending side.
var errEnd = errors.New("end of the connection")

// receive reads the available bytes. It returns 0 if there are none.
func receive(fd int, b []byte) (int, error) {
	n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("receiving: %w", err)
	case n == 0:
		return 0, errEnd
	}
	return n, nil
}

func (r *relay) close() {
	r.tls.free()
	_ = ownfd.Close(r.net)
	if r.plain >= 0 {
		_ = ownfd.Close(r.plain)
	}
}

// handshake performs the TLS handshake. Shutting the socket down interrupts it.
func (r *relay) handshake() error {
	for {
		done, failed := r.tls.handshake()
		// A failed handshake has an alert to send, too.
		for r.toNet.fromSession(r.tls); !r.toNet.empty(); r.toNet.fromSession(r.tls) {
			if err := r.toNet.send(r.net); err != nil {
				return errors.Join(failed, fmt.Errorf("%w: %w", ErrEnded, err))
			}
			if !r.toNet.empty() {
				await(unix.PollFd{Fd: int32(r.net), Events: unix.POLLOUT})
			}
		}
		if done || failed != nil {
			return failed
		}
		await(unix.PollFd{Fd: int32(r.net), Events: unix.POLLIN})
		n, err := receive(r.net, r.buffer[:])
		if err != nil {
			return fmt.Errorf("%w: %w", ErrEnded, err)
		}
		if n > 0 {
			if err := r.tls.feed(r.buffer[:n]); err != nil {
				return err
			}
		}
	}
}

// await blocks until one of the descriptors is ready.
func await(fds ...unix.PollFd) { _, _ = unix.Poll(fds, -1) } // EINTR only wakes the caller early

// routineRelay moves bytes until one of the two sockets ends. It locks an OS thread,
// since it blocks in poll(2).
func (r *relay) routineRelay() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer r.close()
	for {
		netEnded, err := r.step()
		if err != nil {
			// The plain socket has ended, or the connection is broken. Bytes read from
			// the plain socket are still sent to the network. The plain socket sees the
			// end when r closes.
			r.tls.closeNotify()
			r.flush(&r.toNet, r.net)
			return
		}
		if netEnded {
			r.flush(&r.toPlain, r.plain)
			return
		}
		r.sleep()
	}
}

// step moves bytes until no socket is ready. netEnded says that the network has ended.
func (r *relay) step() (netEnded bool, err error) {
	for moved := true; moved; {
		moved = false
		r.toNet.fromSession(r.tls) // for example, the response to a key update
		if r.toNet.empty() {
			n, err := receive(r.plain, r.buffer[:])
			if err == nil && n > 0 {
				err, moved = r.tls.write(r.buffer[:n]), true
			}
			if err != nil {
				return false, err
			}
			r.toNet.fromSession(r.tls)
		}
		if err := r.toNet.send(r.net); err != nil {
			return false, err
		}
		if r.toPlain.empty() {
			progress, ended, err := r.decrypt()
			if err != nil {
				return false, err
			}
			netEnded, moved = ended, moved || progress
		}
		if err := r.toPlain.send(r.plain); err != nil || netEnded {
			return netEnded, err
		}
	}
	return false, nil
}

// decrypt fills toPlain with plain text that the session has, or that it gets from
// newly received bytes.
func (r *relay) decrypt() (moved, ended bool, err error) {
	if moved, ended, err = r.plainText(); moved || ended || err != nil {
		return moved, ended, err
	}
	n, err := receive(r.net, r.buffer[:])
	if errors.Is(err, errEnd) {
		return false, true, nil
	}
	if err != nil || n == 0 {
		return false, false, err
	}
	if err := r.tls.feed(r.buffer[:n]); err != nil {
		return false, false, err
	}
	_, ended, err = r.plainText()
	return true, ended, err
}

// plainText fills toPlain with the plain text that the session can decrypt without more
// input.
func (r *relay) plainText() (moved, ended bool, err error) {
	p := &r.toPlain
	filled := 0
	for filled < len(p.buf) && err == nil {
		var n int
		if n, err = r.tls.read(p.buf[filled:]); n == 0 {
			break
		}
		filled += n
	}
	p.b = p.buf[:filled]
	if errors.Is(err, errClosed) {
		ended, err = true, nil
	}
	return filled > 0, ended, err
}

// flush sends the pending bytes before the relay ends. It stops if the peer has closed,
// or accepts nothing for lastWords.
func (r *relay) flush(p *pending, fd int) {
	for {
		if p == &r.toNet {
			p.fromSession(r.tls)
		}
		if p.empty() || p.send(fd) != nil {
			return
		}
		if !p.empty() {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
			if n, err := unix.Poll(fds, lastWords); n == 0 && err == nil {
				return
			}
		}
	}
}

// lastWords is how long, in milliseconds, a relay that ends waits for a full socket.
const lastWords = 10_000

// sleep blocks until a socket is ready for a transfer that is possible.
func (r *relay) sleep() {
	fds := [2]unix.PollFd{{Fd: int32(r.net)}, {Fd: int32(r.plain)}}
	if r.toPlain.empty() {
		fds[0].Events |= unix.POLLIN
	} else {
		fds[1].Events |= unix.POLLOUT
	}
	if r.toNet.empty() {
		fds[1].Events |= unix.POLLIN
	} else {
		fds[0].Events |= unix.POLLOUT
	}
	for i := range fds {
		if fds[i].Events == 0 {
			fds[i].Fd = -1 // poll would return at once for a socket that has ended
		}
	}
	await(fds[:]...)
}
