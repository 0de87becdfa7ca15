package tcp_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/tcp"
)

// Targets of others to test against, as transport id strings. Their content
// is overwritten.
var peers = []struct{ name, env string }{
	{"SPDK", "NVMECR_TEST_SPDK"},
	{"Linux", "NVMECR_TEST_LINUX"},
}

// forPeers runs a test against every peer that the environment names.
func forPeers(t *testing.T, test func(t *testing.T, id nvmf.TransportID)) {
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			s := os.Getenv(p.env)
			if s == "" {
				t.Skipf("%s is not set to the transport id of a target whose namespace may be overwritten", p.env)
			}
			id, err := nvmf.ParseTransportID(s)
			require.NoError(t, err)
			test(t, id)
		})
	}
}

func openDevice(t testing.TB, id nvmf.TransportID, o tcp.Options) *tcp.Device {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	d, err := tcp.Open(ctx, id, o)
	require.NoError(t, err)
	return d
}

func TestPeerConformance(t *testing.T) {
	forPeers(t, func(t *testing.T, id nvmf.TransportID) {
		for _, o := range []tcp.Options{{}, {HeaderDigest: true, DataDigest: true}} {
			name := "plain"
			if o.DataDigest {
				name = "digests"
			}
			t.Run(name, func(t *testing.T) {
				blocktest.Run(t, func(t *testing.T) nvmf.Device { return openDevice(t, id, o) })
			})
		}
	})
}

func TestPeerRefusals(t *testing.T) {
	forPeers(t, func(t *testing.T, id nvmf.TransportID) {
		ctx := context.Background()
		other := id
		other.SubNQN = "nqn.2026-01.test:there-is-no-such-subsystem"
		_, err := tcp.Open(ctx, other, tcp.Options{})
		assert.ErrorIs(t, err, nvmf.ErrNoSubsystem)
		other = id
		other.NSID = 31
		_, err = tcp.Open(ctx, other, tcp.Options{})
		assert.ErrorIs(t, err, nvmf.ErrNoNamespace)
	})
}

func TestPeerDiscovery(t *testing.T) {
	forPeers(t, func(t *testing.T, id nvmf.TransportID) {
		entries, err := tcp.Discover(context.Background(), id, tcp.Options{})
		require.NoError(t, err)
		var names []string
		for i := range entries {
			names = append(names, entries[i].SubNQN())
		}
		assert.Contains(t, names, id.SubNQN)
	})
}

// TestPeerReservations needs a target that supports them.
func TestPeerReservations(t *testing.T) {
	forPeers(t, func(t *testing.T, id nvmf.TransportID) {
		d := openDevice(t, id, tcp.Options{})
		defer d.Close()
		if !d.Identity().Reservations {
			assert.ErrorIs(t, d.Reserve(t.Context(), 1), nvmf.ErrNoReservations)
			assert.ErrorIs(t, d.Unreserve(t.Context(), 1), nvmf.ErrNoReservations)
			t.Skip("this target has no reservations")
		}
		r := blocktest.Reservers{Open: func(t *testing.T, host uuid.UUID) nvmf.Reserver {
			return openDevice(t, id, tcp.Options{HostID: host})
		}}
		if command := os.Getenv("NVMECR_TEST_RESTART"); command != "" { // starts the target anew
			r.Restart = func(t *testing.T) {
				out, err := exec.Command("sh", "-c", command).CombinedOutput()
				require.NoError(t, err, "%s", out)
			}
		}
		blocktest.RunReserver(t, r)
	})
}

// TestPeerAuthentication needs a subsystem of a peer that lets in only hosts
// with keys. NVMECR_TEST_SPDK_AUTH or NVMECR_TEST_LINUX_AUTH is its transport
// id; the same with _KEYS is a file as `nvmecr target --dhchap-keys` takes it,
// with one host, and a key of the target's.
func TestPeerAuthentication(t *testing.T) {
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			s := os.Getenv(p.env + "_AUTH")
			if s == "" {
				t.Skipf("%s_AUTH is not set to the transport id of a subsystem that asks for authentication", p.env)
			}
			id, err := nvmf.ParseTransportID(s)
			require.NoError(t, err)
			all, err := config.ReadKeys(os.Getenv(p.env + "_AUTH_KEYS"))
			require.NoError(t, err)
			require.Len(t, all, 1)
			for nqn, keys := range all {
				authenticatePeer(t, id, nqn, keys)
			}
		})
	}
}

func authenticatePeer(t *testing.T, id nvmf.TransportID, nqn string, keys dhchap.Keys) {
	for _, mutual := range []bool{false, true} {
		for _, hash := range []dhchap.Hash{dhchap.SHA256, dhchap.SHA384, dhchap.SHA512} {
			for group := dhchap.NullGroup; group <= dhchap.FFDHE8192; group++ {
				t.Run(fmt.Sprintf("%s %s mutual=%t", hash, group, mutual), func(t *testing.T) {
					o := tcp.Options{HostNQN: nqn, Keys: keys,
						AuthOffer: dhchap.Offer{Hashes: []dhchap.Hash{hash}, Groups: []dhchap.Group{group}}}
					if !mutual {
						o.Keys.Controller = dhchap.Secret{}
					}
					d := openDevice(t, id, o)
					require.NoError(t, use(t, d).Close())
					require.NoError(t, d.Close())
				})
			}
		}
	}
	other := dhchap.NewSecret(dhchap.SHA256)
	for text, wrong := range map[string]dhchap.Keys{
		"target refuses host":   {Host: other},
		"--dhchap-secret":       {},
		"target has a key":      {Host: other, Controller: keys.Controller},
		"refuses the target of": {Host: keys.Host, Controller: other},
	} {
		t.Run(text, func(t *testing.T) {
			_, err := tcp.Open(t.Context(), id, tcp.Options{HostNQN: nqn, Keys: wrong})
			require.ErrorIs(t, err, nvmf.ErrAuthentication)
			assert.ErrorContains(t, err, text)
		})
	}
}
