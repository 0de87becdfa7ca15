// Package tlspsk has the pre-shared keys with which NVMe/TCP uses TLS: their
// form as text, and what becomes of one between a host and a subsystem (NVMe TCP
// Transport Specification 1.0, 3.6.1). TLS itself is in package tls, and in SPDK.
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

// A Key is a pre-shared key. The zero value is none. However it is printed it
// does not show what it is; Reveal does.
type Key struct {
	// retain is the hash that makes the key one of the host: '1' for SHA-256,
	// '2' for SHA-384, '0' for none.
	retain byte
	// key has 32 or 48 bytes. It is behind a pointer because package fmt does not
	// follow it where it cannot call Format.
	key *[]byte
}

// prefix and what follows is the interchange form of keys:
//
//	NVMeTLSkey-1:hh:base64(key, CRC-32 of it):
//
// hh is the hash, 00 for none; the CRC is little-endian.
const prefix = "NVMeTLSkey-1:"

// sizes are those that keys with a hash have.
var sizes = map[byte][]int{'0': {32, 48}, '1': {32}, '2': {48}}

// Parse reads a key. Its errors do not show it.
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
	if err != nil || strings.ContainsAny(text, "\r\n") { // which the decoder skips
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

// New makes a random key of 256 bits, or of 384 if long.
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

// IsZero reports whether there is no key.
func (k Key) IsZero() bool { return k.key == nil }

// Equal reports whether two keys are the same, or both none.
func (k Key) Equal(o Key) bool {
	if k.IsZero() || o.IsZero() {
		return k.IsZero() == o.IsZero()
	}
	return k.retain == o.retain && subtle.ConstantTimeCompare(*k.key, *o.key) == 1
}

// Reveal returns the key, which there must be, as text that Parse reads.
func (k Key) Reveal() string {
	b := binary.LittleEndian.AppendUint32(bytes.Clone(*k.key), crc32.ChecksumIEEE(*k.key))
	return fmt.Sprintf("%s0%c:%s:", prefix, k.retain, base64.StdEncoding.EncodeToString(b))
}

// String does not show the key.
func (k Key) String() string {
	if k.IsZero() {
		return "no TLS key"
	}
	return fmt.Sprintf("%s0%c:(%d bytes, not shown):", prefix, k.retain, len(*k.key))
}

// Format does not show the key, whatever the verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// Derive returns what a host and a subsystem use for TLS, where there is a key: its
// identity, which goes over the wire, and the key itself.
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

// expand is HKDF-Extract and HKDF-Expand-Label of TLS 1.3.
func expand(of func() hash.Hash, secret []byte, label, context string, size int) ([]byte, error) {
	label = "tls13 " + label
	info := binary.BigEndian.AppendUint16(nil, uint16(size))
	info = append(append(info, byte(len(label))), label...)
	info = append(append(info, byte(len(context))), context...)
	return hkdf.Key(of, secret, nil, string(info), size)
}
