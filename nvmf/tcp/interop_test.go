package tcp_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
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
