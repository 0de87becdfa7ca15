package wire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
)

// A connection that any user could have made begins with a proof by both ends that they know the secret of the run. Nobody
// learns the secret from it. What follows is not encrypted: neither are the commands to targets.
//
//	client   16  magic "NVMECR-TREE-TCP", a byte: the version, 1
//	client   32  nonce
//	index    32  nonce
//	index    32  HMAC-SHA-256 of the secret over "index", both nonces
//	client   32  HMAC-SHA-256 of the secret over "client", both nonces
const proofMagic = "NVMECR-TREE-TCP\x01"

const nonceSize = 32

// A Secret is known only to the processes of a run.
type Secret [32]byte

// ErrNotProved means that the other end does not know the secret of the run.
var ErrNotProved = errors.New("the other end does not know the secret of the run")

// mac returns the proof of one end.
func (s *Secret) mac(who string, client, index []byte) []byte {
	h := hmac.New(sha256.New, s[:])
	for _, part := range [][]byte{[]byte(who), client, index} {
		h.Write(part) // never fails
	}
	return h.Sum(nil)
}

// Prove is the client's side of the proof.
func (s *Secret) Prove(stream io.ReadWriter) error {
	nonce := make([]byte, nonceSize)
	if _, err := rand.Read(nonce); err != nil {
		return err
	}
	if _, err := stream.Write(append([]byte(proofMagic), nonce...)); err != nil {
		return err
	}
	answer := make([]byte, nonceSize+sha256.Size)
	if _, err := io.ReadFull(stream, answer); err != nil {
		return fmt.Errorf("%w: %w", ErrNotProved, err)
	}
	theirs := answer[:nonceSize]
	if subtle.ConstantTimeCompare(answer[nonceSize:], s.mac("index", nonce, theirs)) == 0 {
		return ErrNotProved
	}
	_, err := stream.Write(s.mac("client", nonce, theirs))
	return err
}

// Challenge is the index's side of the proof.
func (s *Secret) Challenge(stream io.ReadWriter) error {
	hello := make([]byte, len(proofMagic)+nonceSize)
	if _, err := io.ReadFull(stream, hello); err != nil {
		return err
	}
	if string(hello[:len(proofMagic)]) != proofMagic {
		return ErrNotProved
	}
	theirs, nonce := hello[len(proofMagic):], make([]byte, nonceSize)
	if _, err := rand.Read(nonce); err != nil {
		return err
	}
	if _, err := stream.Write(append(nonce, s.mac("index", theirs, nonce)...)); err != nil {
		return err
	}
	proof := make([]byte, sha256.Size)
	if _, err := io.ReadFull(stream, proof); err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(proof, s.mac("client", theirs, nonce)) == 0 {
		return ErrNotProved
	}
	return nil
}
