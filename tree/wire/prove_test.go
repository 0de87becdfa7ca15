package wire

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProof(t *testing.T) {
	ours, other := Secret{1, 2, 3}, Secret{1, 2, 4}
	for _, tt := range []struct {
		name          string
		client, index Secret
		ok            bool
	}{
		{"the same secret", ours, ours, true},
		{"of another run", other, ours, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := net.Pipe()
			challenged := make(chan error, 1)
			go func() {
				challenged <- tt.index.Challenge(b)
				b.Close()
			}()
			err := tt.client.Prove(a)
			a.Close()
			if tt.ok {
				require.NoError(t, err)
				require.NoError(t, <-challenged)
				return
			}
			require.ErrorIs(t, err, ErrNotProved)
			require.Error(t, <-challenged)
		})
	}
}

// TestProofIsOfThisConnection checks that a client cannot use the index's own proof, or a proof of another
// connection.
func TestProofIsOfThisConnection(t *testing.T) {
	secret := Secret{9}
	for _, reflect := range []bool{true, false} {
		a, b := net.Pipe()
		challenged := make(chan error, 1)
		go func() {
			challenged <- secret.Challenge(b)
			b.Close()
		}()
		_, err := a.Write(append([]byte(proofMagic), make([]byte, nonceSize)...))
		require.NoError(t, err)
		answer := make([]byte, nonceSize+32)
		_, err = a.Read(answer)
		require.NoError(t, err)
		proof := answer[nonceSize:]
		if !reflect {
			proof = secret.mac("client", make([]byte, nonceSize), make([]byte, nonceSize))
		}
		_, err = a.Write(proof)
		require.NoError(t, err)
		assert.ErrorIs(t, <-challenged, ErrNotProved)
	}
	// A peer that is not an index.
	a, b := net.Pipe()
	go func() {
		buf := make([]byte, 100)
		_, _ = b.Read(buf)
		_, _ = b.Write(append(buf, buf...)[:nonceSize+32])
		b.Close()
	}()
	assert.ErrorIs(t, secret.Prove(a), ErrNotProved)
}
