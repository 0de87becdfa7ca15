// Package tls puts TLS 1.3 with pre-shared keys around connected sockets, as
// NVMe/TCP uses it (NVMe TCP Transport Specification 1.0, 3.6.1). Package tlspsk
// has the keys.
//
// Go's crypto/tls has no keys that were agreed beforehand, so TLS is that of
// OpenSSL 3 (libssl.so.3). The library is loaded when the first connection asks for
// TLS: programs that use no TLS need no OpenSSL. A program that was built without
// cgo has no TLS.
//
// Client and Server take a socket over, shake hands, and return another socket that
// carries the plain bytes. Initiator and target use that socket like one without
// TLS. A goroutine per connection, the relay, moves the bytes:
//
//	initiator -- socketpair -- relay (OpenSSL) -- TCP -- relay -- socketpair -- target
//
// The relay ends when either side of it does: what came before the end is
// delivered. All functions may be called from any goroutine.
//
// Key exchange is always with (EC)DHE, so a key that becomes known later does not
// open what was recorded. There are no session tickets, no early data and no
// certificates.
package tls

import "errors"

// A Key is what both ends of a connection have agreed.
type Key struct {
	// Identity goes over the wire, to say which key it is: at most 255 bytes.
	Identity string
	// Secret has 32 bytes for TLS_AES_128_GCM_SHA256, or 48 for
	// TLS_AES_256_GCM_SHA384.
	Secret []byte
}

// Errors of Client and Server.
var (
	// ErrUnavailable: this program or this host has no OpenSSL.
	ErrUnavailable = errors.New("TLS is not available")
	// ErrNotTLS: what the other end sends is not TLS.
	ErrNotTLS = errors.New("the other end does not use TLS")
	// ErrRefused: the ends could not agree, for want of a common key mostly.
	ErrRefused = errors.New("the TLS handshake failed")
	// ErrEnded: the other end closed the connection, or the handshake was
	// interrupted.
	ErrEnded = errors.New("the connection ended in the TLS handshake")
)
