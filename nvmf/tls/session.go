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

// A session is OpenSSL's half of a connection. One goroutine at a time uses it.
type session struct {
	s      *C.struct_tls_session
	finder cgo.Handle // a server's
	why    [C.TLS_WHY]C.char
}

// errClosed: the other end has said that nothing more comes.
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

// handshake goes on with the handshake; done says that the ends have agreed.
func (s *session) handshake() (done bool, err error) {
	n, err := s.result(C.tls_handshake(s.s, &s.why[0]))
	return n == 1, err
}

// read returns how much plain text it has put to b, 0 until more has come.
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

// feed takes what came from the network.
func (s *session) feed(b []byte) error {
	if C.tls_feed(s.s, unsafe.Pointer(&b[0]), C.int(len(b))) != 1 {
		return errors.New("no memory for what came")
	}
	return nil
}

// drain returns how much it has put to b of what is to be sent.
func (s *session) drain(b []byte) int {
	return int(C.tls_drain(s.s, unsafe.Pointer(&b[0]), C.int(len(b))))
}
