//go:build spdk

package spdk_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/spdk"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tcp/fakepeer"
)

const authHost = "nqn.2014-08.org.example:host"

// guarded starts a target that admits only authHost, with the given keys.
func guarded(tb testing.TB, keys dhchap.Keys) *restartable {
	r := embedded(tb, 4096, 0)
	r.setKeys(tb, keys)
	return r
}

// setKeys replaces the subsystem by one with the same namespace and other keys.
func (r *restartable) setKeys(tb testing.TB, keys dhchap.Keys) {
	require.NoError(tb, r.target.RemoveSubsystem(targetNQN))
	require.NoError(tb, r.target.AddSubsystem(target.Subsystem{
		NQN: targetNQN, Namespaces: []target.Namespace{{NSID: 1, Backing: lasting{r.backing}}}, Keys: map[string]dhchap.Keys{authHost: keys},
	}))
}

// someKeys returns secrets with different transformations and lengths.
func someKeys() dhchap.Keys {
	return dhchap.Keys{Host: dhchap.NewSecret(dhchap.NoHash), Controller: dhchap.NewSecret(dhchap.SHA512)}
}

// use writes and reads through a new queue.
func use(t *testing.T, d nvmf.Device) {
	q, err := d.OpenQueue(t.Context(), 4)
	require.NoError(t, err)
	useQueue(t, q)
	require.NoError(t, q.Close())
}

func useQueue(t *testing.T, q nvmf.Queue) {
	out, in := make([]byte, 4096), make([]byte, 4096)
	copy(out, t.Name())
	require.NoError(t, do(q, &nvmf.Command{Opcode: nvmf.Write, LBA: 7, Blocks: 1, Data: [][]byte{out}}))
	require.NoError(t, do(q, &nvmf.Command{Opcode: nvmf.Read, LBA: 7, Blocks: 1, Data: [][]byte{in}}))
	assert.Equal(t, out, in)
}

// everyWay opens a namespace with each hash and each of the groups, with authentication
// of the host alone and of both ends.
func everyWay(t *testing.T, id nvmf.TransportID, host string, keys dhchap.Keys, groups ...dhchap.Group) {
	for _, mutual := range []bool{false, true} {
		for _, hash := range []dhchap.Hash{dhchap.SHA256, dhchap.SHA384, dhchap.SHA512} {
			for _, group := range groups {
				t.Run(fmt.Sprintf("%s %s mutual=%t", hash, group, mutual), func(t *testing.T) {
					o := spdk.Options{HostNQN: host, Keys: keys,
						AuthOffer: dhchap.Offer{Hashes: []dhchap.Hash{hash}, Groups: []dhchap.Group{group}}}
					if !mutual {
						o.Keys.Controller = dhchap.Secret{}
					}
					d := openDevice(t, id, o)
					use(t, d)
					require.NoError(t, d.Close())
				})
			}
		}
	}
}

// TestAuthentication authenticates with all DH groups that the target accepts.
func TestAuthentication(t *testing.T) {
	keys := someKeys()
	id := guarded(t, keys).id(t)
	everyWay(t, id, authHost, keys, dhchap.NullGroup, dhchap.FFDHE2048, dhchap.FFDHE3072, dhchap.FFDHE4096) // the groups that the target accepts
	_, err := spdk.Open(t.Context(), id, spdk.Options{HostNQN: authHost, Keys: keys, AuthOffer: dhchap.Offer{Groups: []dhchap.Group{dhchap.FFDHE8192}}})
	assert.ErrorContains(t, err, "group not usable", "only the configured group is offered")
}

func TestAuthenticatedConformance(t *testing.T) {
	keys := someKeys()
	id := guarded(t, keys).id(t)
	blocktest.Run(t, func(t *testing.T) nvmf.Device {
		return openDevice(t, id, spdk.Options{HostNQN: authHost, Keys: keys})
	})
}

// A refusal is a case in which Open fails with the same error in both drivers.
type refusal struct {
	name string
	at   nvmf.TransportID
	host string
	keys dhchap.Keys
	want error
}

func testRefusals(t *testing.T, refusals []refusal) {
	for _, x := range refusals {
		t.Run(x.name, func(t *testing.T) {
			_, err := spdk.Open(t.Context(), x.at, spdk.Options{HostNQN: x.host, Keys: x.keys})
			require.ErrorIs(t, err, x.want)
			t.Log(err)
			_, other := tcp.Open(t.Context(), x.at, tcp.Options{HostNQN: x.host, Keys: x.keys})
			require.ErrorIs(t, other, x.want)
			if x.want == nvmf.ErrAuthentication {
				assert.Equal(t, other.Error(), err.Error(), "driver go")
			}
		})
	}
}

func TestAuthenticationRefused(t *testing.T) {
	keys := someKeys()
	id, oneWay, open := guarded(t, keys).id(t), guarded(t, dhchap.Keys{Host: keys.Host}).id(t), embedded(t, 4096, 0).id(t)
	other := dhchap.NewSecret(dhchap.SHA256)
	testRefusals(t, []refusal{
		{"wrong key", id, authHost, dhchap.Keys{Host: other}, nvmf.ErrAuthentication},
		{"wrong key, mutual", id, authHost, dhchap.Keys{Host: other, Controller: keys.Controller}, nvmf.ErrAuthentication},
		{"target's key is wrong", id, authHost, dhchap.Keys{Host: keys.Host, Controller: other}, nvmf.ErrAuthentication},
		{"target has no key", oneWay, authHost, keys, nvmf.ErrAuthentication},
		{"no secret", id, authHost, dhchap.Keys{}, nvmf.ErrAuthentication},
		{"only the target's secret", id, authHost, dhchap.Keys{Controller: other}, nvmf.ErrAuthentication},
		{"host without a key", id, authHost + "2", keys, nvmf.ErrHostRefused},
		{"target that does not ask", open, authHost, keys, nvmf.ErrAuthentication},
	})
	d := openDevice(t, open, spdk.Options{HostNQN: authHost, Keys: dhchap.Keys{Host: keys.Host}})
	require.NoError(t, d.Close(), "a target without authentication, and only a host secret")
}

// TestAuthenticatedReset checks that a Reset authenticates again, on the admin queue
// and on the I/O queues.
func TestAuthenticatedReset(t *testing.T) {
	keys := someKeys()
	r := guarded(t, keys)
	d := openDevice(t, r.id(t), spdk.Options{HostNQN: authHost, Keys: keys})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	queues := []nvmf.Queue{openQueue(t, d, 4), openQueue(t, d, 4)}
	for range 2 {
		assert.Equal(t, 1, r.target.Cut(func(h target.Host) bool { return h.NQN == authHost }))
		for _, q := range queues {
			require.ErrorIs(t, do(q, &nvmf.Command{Opcode: nvmf.Flush}), nvmf.ErrConnectionLost)
		}
		for _, q := range queues {
			require.NoError(t, q.Reset(t.Context()))
			useQueue(t, q)
		}
	}
	// When the target's key for the host has changed, Reset fails with ErrAuthentication.
	r.setKeys(t, someKeys())
	require.ErrorIs(t, do(queues[0], &nvmf.Command{Opcode: nvmf.Flush}), nvmf.ErrConnectionLost)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err := queues[0].Reset(ctx)
	require.ErrorIs(t, err, nvmf.ErrAuthentication)
	assert.ErrorContains(t, err, "--dhchap-secret")
	r.setKeys(t, keys)
	require.NoError(t, queues[0].Reset(t.Context()))
	useQueue(t, queues[0])
}

// TestOddAuthentication checks the errors for targets that violate the authentication
// protocol.
func TestOddAuthentication(t *testing.T) {
	keys, answers := someKeys(), 0
	var controller *dhchap.Controller
	for name, x := range map[string]struct {
		receive func(c *fakepeer.Conn, sqe *nvme.SQE) error
		want    error
		text    string
	}{
		"refuses the command": {func(c *fakepeer.Conn, sqe *nvme.SQE) error {
			return c.Respond(sqe.CID(), nvme.StatusInvalidField|nvme.DNR, 0)
		}, nvmf.ErrAuthentication, "Authentication Receive: Invalid Field"},
		"success at once": {func(c *fakepeer.Conn, sqe *nvme.SQE) error {
			return c.Data(sqe.CID(), 0, append([]byte{1, 3}, make([]byte, 4094)...), pdu.FlagLast|pdu.FlagSuccess)
		}, nvmf.ErrAuthentication, "refuses the target"},
		"hangs up":  {func(*fakepeer.Conn, *nvme.SQE) error { return context.Canceled }, nvmf.ErrUnreachable, ""},
		"is silent": {func(*fakepeer.Conn, *nvme.SQE) error { return nil }, nvmf.ErrUnreachable, "no answer in time"},
		"hangs up when it has the proof": {func(c *fakepeer.Conn, sqe *nvme.SQE) error {
			if answers++; answers > 1 {
				return context.Canceled
			}
			return c.Data(sqe.CID(), 0, append(controller.Give(dhchap.MaxMessage), make([]byte, dhchap.MaxMessage)...)[:dhchap.MaxMessage], pdu.FlagLast|pdu.FlagSuccess)
		}, nvmf.ErrUnreachable, "the wrong key (--dhchap-secret)"},
	} {
		t.Run(name, func(t *testing.T) {
			controller = dhchap.NewController(dhchap.Config{HostNQN: authHost, Keys: keys})
			p := fakepeer.New(nil)
			p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, message []byte) (bool, error) {
				switch {
				case sqe.Opcode() != nvme.AdminFabrics:
					return false, nil
				case sqe.FabricsType() == nvme.FabricsConnect:
					return true, c.Respond(sqe.CID(), 0, nvme.ConnectResult(1, nvme.ConnectAuthTransaction))
				case sqe.FabricsType() == nvme.FabricsAuthReceive:
					return true, x.receive(c, sqe)
				case sqe.FabricsType() == nvme.FabricsAuthSend:
					controller.Take(message)
				}
				return true, c.Respond(sqe.CID(), 0, 0)
			}
			_, err := spdk.Open(t.Context(), p.Start(t), spdk.Options{HostNQN: authHost, Keys: keys, ConnectTimeout: 2 * time.Second})
			t.Log(err)
			require.ErrorIs(t, err, x.want)
			assert.ErrorContains(t, err, x.text)
		})
	}
}

// keysEnv names a file with a line HOSTNQN HOSTKEY TARGETKEY for the target of peerEnv,
// which admits only that host.
const keysEnv = "NVMECR_TEST_SPDK_KEYS"

// TestPeerAuthentication tests authentication with other targets. A target may close the
// connection of a host with a wrong key before the host has read the failure message.
func TestPeerAuthentication(t *testing.T) {
	id := peer(t)
	path := os.Getenv(keysEnv)
	if path == "" {
		t.Skipf("%s is not set to a file of keys", keysEnv)
	}
	all, err := config.ReadKeys(path)
	require.NoError(t, err)
	for host, keys := range all {
		t.Run("every way", func(t *testing.T) {
			everyWay(t, id, host, keys, dhchap.NullGroup, dhchap.FFDHE2048, dhchap.FFDHE3072, dhchap.FFDHE4096, dhchap.FFDHE6144, dhchap.FFDHE8192)
		})
		t.Run("conformance", func(t *testing.T) {
			blocktest.Run(t, func(t *testing.T) nvmf.Device { return openDevice(t, id, spdk.Options{HostNQN: host, Keys: keys}) })
		})
		other := dhchap.NewSecret(dhchap.SHA256)
		for name, wrong := range map[string]dhchap.Keys{
			"wrong key": {Host: other}, "wrong key, mutual": {Host: other, Controller: keys.Controller},
			"target's key is wrong": {Host: keys.Host, Controller: other}, "no secret": {},
		} {
			t.Run(name, func(t *testing.T) {
				_, err := spdk.Open(t.Context(), id, spdk.Options{HostNQN: host, Keys: wrong})
				t.Log(err)
				if !errors.Is(err, nvmf.ErrUnreachable) || !strings.HasPrefix(name, "wrong key") {
					require.ErrorIs(t, err, nvmf.ErrAuthentication)
				}
				assert.Regexp(t, "--dhchap-(ctrl-)?secret", err)
			})
		}
	}
}
