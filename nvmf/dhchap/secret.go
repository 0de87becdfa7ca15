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

// Hash is a hash function by its identifier.
type Hash uint8

// The identifiers. NoHash is only a Secret's: its key is used as it is.
const (
	NoHash Hash = iota
	SHA256
	SHA384
	SHA512
)

var hashes = [...]crypto.Hash{SHA256: crypto.SHA256, SHA384: crypto.SHA384, SHA512: crypto.SHA512}

// Size returns the length of a hash in bytes, 0 for no hash.
func (h Hash) Size() int {
	if h == NoHash || h > SHA512 {
		return 0
	}
	return hashes[h].Size()
}

// String returns the function's name.
func (h Hash) String() string {
	if h.Size() == 0 {
		return fmt.Sprintf("hash %d", uint8(h))
	}
	return hashes[h].String()
}

// A Secret is a key and how an end makes its own of it. The zero value is
// none. However it is printed it does not show the key; Reveal does.
type Secret struct {
	hash Hash
	// key is behind a pointer because package fmt does not follow it where it
	// cannot call Format: in unexported fields, and for verbs it finds wrong.
	key *[]byte
}

// secretPrefix and what follows is the form secrets have as text:
//
//	DHHC-1:hh:base64(key, CRC-32 of it):
//
// hh is the hash of the transformation, 00 for none; the CRC is little-endian.
const secretPrefix = "DHHC-1:"

// ParseSecret reads a secret. Its errors do not show it.
func ParseSecret(text string) (Secret, error) {
	rest, ok := strings.CutPrefix(text, secretPrefix)
	if !ok || len(rest) < len("hh::") || rest[2] != ':' || rest[len(rest)-1] != ':' {
		return Secret{}, errors.New("a secret looks like DHHC-1:01:BASE64: with a colon at its end; this is none")
	}
	if rest[0] != '0' || rest[1] < '0' || rest[1] > '3' {
		return Secret{}, errors.New("the hash of a secret is 00, 01, 02 or 03; this is another")
	}
	b, err := base64.StdEncoding.Strict().DecodeString(rest[3 : len(rest)-1])
	if err != nil || strings.ContainsAny(text, "\r\n") { // which the decoder skips
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

// NewSecret makes a random secret, as long as the hash of its transformation;
// of 32 bytes for NoHash.
func NewSecret(h Hash) Secret {
	n := h.Size()
	if n == 0 {
		h, n = NoHash, 32
	}
	key := make([]byte, n)
	fillRandom(key)
	return Secret{hash: h, key: &key}
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.key == nil }

// Equal reports whether two secrets are the same.
func (s Secret) Equal(other Secret) bool {
	if s.IsZero() || other.IsZero() {
		return s.IsZero() && other.IsZero()
	}
	return s.hash == other.hash && hmac.Equal(*s.key, *other.key)
}

// Reveal returns the secret, which there must be, as text that ParseSecret reads.
func (s Secret) Reveal() string {
	b := le.AppendUint32(bytes.Clone(*s.key), crc32.ChecksumIEEE(*s.key))
	return fmt.Sprintf("%s%02d:%s:", secretPrefix, s.hash, base64.StdEncoding.EncodeToString(b))
}

// String does not show the key.
func (s Secret) String() string {
	if s.IsZero() {
		return "no secret"
	}
	return fmt.Sprintf("%s%02d:(%d bytes, not shown):", secretPrefix, s.hash, len(*s.key))
}

// Format does not show the key, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// transformed is the key that the end named nqn uses.
func (s Secret) transformed(nqn string) []byte {
	if s.hash == NoHash {
		return *s.key
	}
	mac := hmac.New(hashes[s.hash].New, *s.key)
	mac.Write([]byte(nqn))
	mac.Write([]byte("NVMe-over-Fabrics"))
	return mac.Sum(nil)
}
