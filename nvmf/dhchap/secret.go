package dhchap

import (
	"bytes"
	"crypto"
	"crypto/hmac"
	_ "crypto/sha256" // SHA-256
	_ "crypto/sha512" // SHA-384 and SHA-512
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
)

var le = binary.LittleEndian

// A Hash is the identifier of a hash function.
type Hash uint8

// NoHash occurs only in a Secret, whose key is then used without a transformation.
const (
	NoHash Hash = iota
	SHA256
	SHA384
	SHA512
)

var hashes = [...]crypto.Hash{SHA256: crypto.SHA256, SHA384: crypto.SHA384, SHA512: crypto.SHA512}

// Size returns the length of a hash in bytes, 0 for NoHash.
func (h Hash) Size() int {
	if h == NoHash || h > SHA512 {
		return 0
	}
	return hashes[h].Size()
}

// String returns the name of the hash function.
func (h Hash) String() string {
	if h.Size() == 0 {
		return fmt.Sprintf("hash %d", uint8(h))
	}
	return hashes[h].String()
}

// A Secret is a key with its transformation: the hash by which an end derives the key
// for its NQN. The zero value means no secret. Printing a Secret does not show the key;
// Reveal returns it.
type Secret struct {
	hash Hash
	// key is a pointer because package fmt does not follow pointers in unexported
	// fields, or for verbs that do not fit. In these cases fmt does not call Format.
	key *[]byte
}

// secretPrefix is the beginning of the text form of a secret:
//
//	DHHC-1:hh:base64(key, CRC-32 of the key):
//
// hh is the hash of the transformation, 00 for none. The CRC is little-endian.
const secretPrefix = "DHHC-1:"

// ParseSecret parses a secret. Its errors do not show the text.
func ParseSecret(text string) (Secret, error) {
	rest, ok := strings.CutPrefix(text, secretPrefix)
	if !ok || len(rest) < len("hh::") || rest[2] != ':' || rest[len(rest)-1] != ':' {
		return Secret{}, errors.New("a secret looks like DHHC-1:01:BASE64: with a colon at its end; this is none")
	}
	if rest[0] != '0' || rest[1] < '0' || rest[1] > '3' {
		return Secret{}, errors.New("the hash of a secret is 00, 01, 02 or 03; this is another")
	}
	b, err := base64.StdEncoding.Strict().DecodeString(rest[3 : len(rest)-1])
	if err != nil || strings.ContainsAny(text, "\r\n") { // the base64 decoder ignores line breaks
		return Secret{}, errors.New("the secret is not in base64: it is cut or mistyped")
	}
	n := len(b) - crc32.Size
	if n != 32 && n != 48 && n != 64 {
		return Secret{}, fmt.Errorf("the key of a secret has 32, 48 or 64 bytes; this one has %d", max(n, 0))
	}
	if crc32.ChecksumIEEE(b[:n]) != le.Uint32(b[n:]) {
		return Secret{}, errors.New("the CRC of the secret is wrong: it is mistyped")
	}
	b = b[:n:n]
	return Secret{hash: Hash(rest[1] - '0'), key: &b}, nil
}

// NewSecret returns a random secret for a transformation by h. The key is as long as
// the hash, and has 32 bytes for NoHash.
func NewSecret(h Hash) Secret {
	n := h.Size()
	if n == 0 {
		h, n = NoHash, 32
	}
	key := make([]byte, n)
	fillRandom(key)
	return Secret{hash: h, key: &key}
}

// IsZero reports whether s is the zero value, no secret.
func (s Secret) IsZero() bool { return s.key == nil }

// Equal reports whether two secrets are the same.
func (s Secret) Equal(other Secret) bool {
	if s.IsZero() || other.IsZero() {
		return s.IsZero() && other.IsZero()
	}
	return s.hash == other.hash && hmac.Equal(*s.key, *other.key)
}

// Reveal returns the text form of a secret, which must not be zero.
func (s Secret) Reveal() string {
	b := le.AppendUint32(bytes.Clone(*s.key), crc32.ChecksumIEEE(*s.key))
	return fmt.Sprintf("%s%02d:%s:", secretPrefix, s.hash, base64.StdEncoding.EncodeToString(b))
}

// String describes the secret without its key.
func (s Secret) String() string {
	if s.IsZero() {
		return "no secret"
	}
	return fmt.Sprintf("%s%02d:(%d bytes, not shown):", secretPrefix, s.hash, len(*s.key))
}

// Format prints the result of String for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// transformed returns the key for the end with the given NQN.
func (s Secret) transformed(nqn string) []byte {
	if s.hash == NoHash {
		return *s.key
	}
	mac := hmac.New(hashes[s.hash].New, *s.key)
	mac.Write([]byte(nqn))
	mac.Write([]byte("NVMe-over-Fabrics"))
	return mac.Sum(nil)
}
