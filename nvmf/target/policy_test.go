package target_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

// TestAuthPolicy checks that hosts can authenticate only with the hashes and groups of
// the target's policy.
func TestAuthPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		target, host dhchap.Offer
		fails        bool
	}{
		"no policy":          {},
		"no exchange":        {host: dhchap.Offer{Groups: []dhchap.Group{dhchap.NullGroup}}},
		"exchange asked for": {target: dhchap.Offer{Groups: []dhchap.Group{dhchap.FFDHE2048}}, host: dhchap.Offer{Groups: []dhchap.Group{dhchap.NullGroup}}, fails: true},
		"larger asked for":   {target: dhchap.Offer{Groups: []dhchap.Group{dhchap.FFDHE3072}}, host: dhchap.Offer{Groups: []dhchap.Group{dhchap.FFDHE2048}}, fails: true},
		"large by policy":    {target: dhchap.Offer{Groups: []dhchap.Group{dhchap.FFDHE6144}}},
		"large without":      {host: dhchap.Offer{Groups: []dhchap.Group{dhchap.FFDHE6144}}, fails: true},
		"hash asked for":     {target: dhchap.Offer{Hashes: []dhchap.Hash{dhchap.SHA512}}, host: dhchap.Offer{Hashes: []dhchap.Hash{dhchap.SHA256}}, fails: true},
		"hash agreed":        {target: dhchap.Offer{Hashes: []dhchap.Hash{dhchap.SHA384}}, host: dhchap.Offer{Hashes: []dhchap.Hash{dhchap.SHA256, dhchap.SHA384}}},
	} {
		config, keys := guardedConfig(t)
		config.Auth = c.target
		_, addr := serve(t, config)
		d, err := tcp.Open(t.Context(), id(t, addr, 1), tcp.Options{HostNQN: testHost, Keys: keys, AuthOffer: c.host})
		if c.fails {
			assert.ErrorIs(t, err, nvmf.ErrAuthentication, name)
			continue
		}
		require.NoError(t, err, name)
		require.NoError(t, d.Close())
	}
}

// TestWrongKeysAreSlow checks that the target delays the failure message for a wrong
// proof.
func TestWrongKeysAreSlow(t *testing.T) {
	addr, _ := guarded(t)
	begin := time.Now()
	_, err := tcp.Open(t.Context(), id(t, addr, 1), tcp.Options{HostNQN: testHost, Keys: dhchap.Keys{Host: dhchap.NewSecret(dhchap.SHA256)}})
	require.ErrorIs(t, err, nvmf.ErrAuthentication)
	assert.GreaterOrEqual(t, time.Since(begin), target.HoldBackFor)
}
