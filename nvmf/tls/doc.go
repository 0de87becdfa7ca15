// Package tls secures connected sockets by TLS 1.3 with pre-shared keys, as the NVMe
// TCP Transport Specification 1.0, section 3.6.1, defines it for NVMe/TCP. Package
// tlspsk manages the keys.
//
// The package calls OpenSSL 3 (libssl.so.3), since Go's crypto/tls does not support
// external pre-shared keys. It loads the library for the first connection with TLS: a
// program that uses no TLS needs no OpenSSL. In a program built without cgo, Client and
// Server fail with ErrUnavailable.
//
// Client and Server take over a connected socket, perform the handshake, and return
// another socket that carries the plain text. Initiator and target use the returned
// socket like a TCP socket. For each connection one goroutine, the relay, moves the
// bytes:
//
//	initiator -- socketpair -- relay (OpenSSL) -- TCP -- relay -- socketpair -- target
//
// The relay ends when either of its sockets ends. It delivers the bytes received before
// the end. All functions are safe for concurrent use.
//
// The key exchange always includes (EC)DHE: recorded traffic stays secret if a
// pre-shared key leaks later. Session tickets, early data and certificates are not
// used.
package tls

import "errors"

// A Key is the pre-shared key of both ends of a connection.
type Key struct {
	// Identity names the key. It is sent in clear text, and has at most 255 bytes.
	Identity string
	// Secret has 32 bytes for TLS_AES_128_GCM_SHA256, or 48 for
	// TLS_AES_256_GCM_SHA384.
	Secret []byte
}

// Errors of Client and Server.
var (
	// ErrUnavailable: the program was built without cgo, or the host has no OpenSSL 3.
	ErrUnavailable = errors.New("TLS is not available")
	// ErrNotTLS: the other end sent bytes that are not TLS.
	ErrNotTLS = errors.New("the other end does not use TLS")
	// ErrRefused: the handshake failed, in most cases for want of a common key.
	ErrRefused = errors.New("the TLS handshake failed")
	// ErrEnded: the connection ended during the handshake.
	ErrEnded = errors.New("the connection ended in the TLS handshake")
)
