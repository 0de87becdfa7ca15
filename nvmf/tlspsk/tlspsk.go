// Package tlspsk manages the pre-shared keys of NVMe/TCP with TLS: their text form, and
// the key that a host and a subsystem derive for a connection (NVMe TCP Transport
// Specification 1.0, section 3.6.1). TLS itself is implemented in package tls, and in
// SPDK.
package tlspsk

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"strings"
)

// A Key is a pre-shared key. The zero value means no key. Printing a Key does not show
// it; Reveal returns it.
type Key struct {
	// retain identifies the hash that derives the host's key: '1' for SHA-256, '2' for
	// SHA-384, '0' for no derivation.
	retain byte
	// key has 32 or 48 bytes. It is a pointer because package fmt does not follow
	// pointers where it cannot call Format.
	key *[]byte
}

// prefix is the beginning of the interchange form of keys:
//
//	NVMeTLSkey-1:hh:base64(key, CRC-32 of the key):
//
// hh is the hash, 00 for none. The CRC is little-endian.
const prefix = "NVMeTLSkey-1:"

// sizes maps a hash to the allowed key lengths in bytes.
var sizes = map[byte][]int{'0': {32, 48}, '1': {32}, '2': {48}}

// Parse parses a key. Its errors do not show the text.
func Parse(text string) (Key, error) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok || len(rest) < len("hh::") || rest[2] != ':' || rest[len(rest)-1] != ':' {
		return Key{}, errors.New("a TLS key looks like NVMeTLSkey-1:01:BASE64: with a colon at its end; this is none")
	}
	allowed := sizes[rest[1]]
	if rest[0] != '0' || allowed == nil {
		return Key{}, errors.New("the hash of a TLS key is 00, 01 or 02; this is another")
	}
	b, err := base64.StdEncoding.Strict().DecodeString(rest[3 : len(rest)-1])
	if err != nil || strings.ContainsAny(text, "\r\n") { // the base64 decoder ignores line breaks
		return Key{}, errors.New("the TLS key is not in base64: it is cut or mistyped")
	}
	n := len(b) - crc32.Size
	if n != allowed[0] && n != allowed[len(allowed)-1] {
		return Key{}, fmt.Errorf("a TLS key has 32 bytes with hash 01 and 48 with 02; this one has %d with 0%c", max(n, 0), rest[1])
	}
	if crc32.ChecksumIEEE(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return Key{}, errors.New("the CRC of the TLS key is wrong: it is mistyped")
	}
	b = b[:n:n]
	return Key{rest[1], &b}, nil
}

// New returns a random key of 256 bits, or of 384 bits if long is true.
func New(long bool) Key {
	k := Key{retain: '1'}
	if long {
		k.retain = '2'
	}
	key := make([]byte, sizes[k.retain][0])
	_, _ = rand.Read(key) // never fails
	k.key = &key
	return k
}

// IsZero reports whether k is the zero value, no key.
func (k Key) IsZero() bool { return k.key == nil }

// Equal reports whether two keys are equal. Two zero values are equal.
func (k Key) Equal(o Key) bool {
	if k.IsZero() || o.IsZero() {
		return k.IsZero() == o.IsZero()
	}
	return k.retain == o.retain && subtle.ConstantTimeCompare(*k.key, *o.key) == 1
}

// Reveal returns the text form of a key, which must not be zero.
func (k Key) Reveal() string {
	b := binary.LittleEndian.AppendUint32(bytes.Clone(*k.key), crc32.ChecksumIEEE(*k.key))
	return fmt.Sprintf("%s0%c:%s:", prefix, k.retain, base64.StdEncoding.EncodeToString(b))
}

// String describes the key without showing it.
func (k Key) String() string {
	if k.IsZero() {
		return "no TLS key"
	}
	return fmt.Sprintf("%s0%c:(%d bytes, not shown):", prefix, k.retain, len(*k.key))
}

// Format prints the result of String for every verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// Derive returns the identity and the key with which a host and a subsystem use TLS.
// The identity is sent in clear text. k must not be zero.
func (k Key) Derive(hostNQN, subNQN string) (identity string, key []byte, err error) {
	suite, of := "01", sha256.New // TLS_AES_128_GCM_SHA256
	if len(*k.key) == sha512.Size384 {
		suite, of = "02", sha512.New384 // TLS_AES_256_GCM_SHA384
	}
	identity = "NVMe0R" + suite + " " + hostNQN + " " + subNQN
	if len(identity) > 255 {
		return "", nil, fmt.Errorf("the NQNs of host and subsystem are too long for TLS: %d bytes together with the rest, at most 255 are allowed", len(identity))
	}
	retained := *k.key
	if k.retain != '0' {
		retain := sha256.New
		if k.retain == '2' {
			retain = sha512.New384
		}
		if retained, err = expand(retain, retained, "HostNQN", hostNQN, len(retained)); err != nil {
			return "", nil, err
		}
	}
	key, err = expand(of, retained, "nvme-tls-psk", identity, len(retained))
	return identity, key, err
}

// expand computes HKDF-Extract and TLS 1.3's HKDF-Expand-Label.
func expand(of func() hash.Hash, secret []byte, label, context string, size int) ([]byte, error) {
	label = "tls13 " + label
	info := binary.BigEndian.AppendUint16(nil, uint16(size))
	info = append(append(info, byte(len(label))), label...)
	info = append(append(info, byte(len(context))), context...)
	return hkdf.Key(of, secret, nil, string(info), size)
}
