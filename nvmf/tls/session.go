//go:build cgo

package tls

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "openssl.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime/cgo"
	"unsafe"
)

// A session is the OpenSSL state of a connection. Its methods must not be called
// concurrently.
type session struct {
	s      *C.struct_tls_session
	finder cgo.Handle // set for a server only
	why    [C.TLS_WHY]C.char
}

// errClosed: the other end has sent a close_notify alert.
var errClosed = errors.New("closed by the other end")

func load() error {
	if why := C.tls_load(); why != nil {
		return fmt.Errorf("%w: %s", ErrUnavailable, C.GoString(why))
	}
	return nil
}

func newClient(k Key) (*session, error) {
	if err := load(); err != nil {
		return nil, err
	}
	identity := C.CString(k.Identity)
	defer C.free(unsafe.Pointer(identity))
	return opened(&session{s: C.tls_client(identity, unsafe.Pointer(&k.Secret[0]), C.size_t(len(k.Secret)))})
}

func newServer(find finder) (*session, error) {
	if err := load(); err != nil {
		return nil, err
	}
	handle := cgo.NewHandle(find)
	return opened(&session{s: C.tls_server(C.uintptr_t(handle)), finder: handle})
}

func opened(s *session) (*session, error) {
	if s.s == nil {
		s.free()
		return nil, fmt.Errorf("%w: no memory for a session of OpenSSL's", ErrUnavailable)
	}
	return s, nil
}

func (s *session) free() {
	if s.s != nil {
		C.tls_free(s.s)
	}
	if s.finder != 0 {
		s.finder.Delete()
	}
}

// tlsFindKey puts the key of an identity to secret, which has space for
// TLS_MAX_SECRET bytes, and returns its size, 0 if there is none.
//
//export tlsFindKey
func tlsFindKey(handle C.uintptr_t, identity unsafe.Pointer, length C.size_t, secret *C.uchar) C.size_t {
	find := cgo.Handle(handle).Value().(finder)
	key := find(string(unsafe.Slice((*byte)(identity), length)))
	if checkSecret(key) != nil {
		return 0
	}
	return C.size_t(copy(unsafe.Slice((*byte)(secret), C.TLS_MAX_SECRET), key))
}

// handshake continues the handshake. done says that it is complete.
func (s *session) handshake() (done bool, err error) {
	n, err := s.result(C.tls_handshake(s.s, &s.why[0]))
	return n == 1, err
}

// read decrypts into b and returns the number of bytes. The number is 0 if the session
// needs more input.
func (s *session) read(b []byte) (int, error) {
	return s.result(C.tls_read(s.s, unsafe.Pointer(&b[0]), C.int(len(b)), &s.why[0]))
}

func (s *session) write(b []byte) error {
	n, err := s.result(C.tls_write(s.s, unsafe.Pointer(&b[0]), C.int(len(b)), &s.why[0]))
	if err == nil && n != len(b) {
		err = errors.New("OpenSSL took a part of the bytes only")
	}
	return err
}

func (s *session) result(n C.int) (int, error) {
	switch n {
	case C.TLS_FAILED:
		return 0, fmt.Errorf("%w: OpenSSL: %s", ErrRefused, C.GoString(&s.why[0]))
	case C.TLS_NOT_TLS:
		return 0, ErrNotTLS
	case C.TLS_CLOSED:
		return 0, errClosed
	}
	return int(n), nil
}

func (s *session) closeNotify() { C.tls_close_notify(s.s) }

// feed passes bytes received from the network to the session.
func (s *session) feed(b []byte) error {
	if C.tls_feed(s.s, unsafe.Pointer(&b[0]), C.int(len(b))) != 1 {
		return errors.New("no memory for what came")
	}
	return nil
}

// drain copies bytes to be sent into b, and returns their number.
func (s *session) drain(b []byte) int {
	return int(C.tls_drain(s.s, unsafe.Pointer(&b[0]), C.int(len(b))))
}
