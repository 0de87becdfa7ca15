package tls

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// A finder returns the secret of an identity, or nil if there is none.
type finder func(identity string) []byte

// Client starts TLS as the client on the connected stream socket fd, and returns the
// socket that carries the plain text. It takes over fd, even if it fails. ctx bounds
// the handshake.
//
// Errors wrap ErrUnavailable, ErrNotTLS, ErrRefused, ErrEnded or the cause of ctx.
func Client(ctx context.Context, fd int, k Key) (plain int, err error) {
	if err := checkSecret(k.Secret); err != nil {
		return -1, errors.Join(err, ownfd.Close(fd))
	}
	s, err := newClient(k)
	if err != nil {
		return -1, errors.Join(err, ownfd.Close(fd))
	}
	return secure(ctx, fd, s)
}

// Server is like Client, for the server's end. It calls find, possibly in another
// thread, for the key of the identity that the client names. If find returns nil, the
// client is refused. identity is the one whose key the client has proved to have.
func Server(ctx context.Context, fd int, find func(identity string) []byte) (plain int, identity string, err error) {
	s, err := newServer(func(name string) []byte {
		identity = name
		return find(name)
	})
	if err != nil {
		return -1, "", errors.Join(err, ownfd.Close(fd))
	}
	plain, err = secure(ctx, fd, s)
	return plain, identity, err
}

func checkSecret(b []byte) error {
	if len(b) != 32 && len(b) != 48 {
		return fmt.Errorf("a key for TLS has 32 or 48 bytes, this one %d", len(b))
	}
	return nil
}

// secure performs the handshake and starts the relay.
func secure(ctx context.Context, fd int, s *session) (plain int, err error) {
	r := &relay{net: fd, tls: s, plain: -1}
	if err := unix.SetNonblock(fd, true); err != nil {
		r.close()
		return -1, err
	}
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // wakes the handshake
		close(over)
	})
	err = r.handshake()
	if !stop() {
		<-over // the shutdown must not run after fd is closed and its number reused
		err = context.Cause(ctx)
	}
	pair := [2]int{-1, -1}
	if err == nil {
		pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		r.close()
		return -1, err
	}
	r.plain, plain = ownfd.Hold(pair[0]), ownfd.Hold(pair[1])
	go r.routineRelay()
	return plain, nil
}
