package tcp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tcp/fakepeer"
)

const authHost = "nqn.2014-08.org.example:host"

// guarded starts a target that admits authHost alone, with the given keys.
func guarded(tb testing.TB, keys dhchap.Keys) (*target.Target, nvmf.TransportID) {
	b, err := target.NewMemory(64*nvmf.MiB, 4096)
	require.NoError(tb, err)
	t, err := target.New(target.Config{Subsystems: []target.Subsystem{{
		NQN: targetNQN, Namespaces: []target.Namespace{{NSID: 1, Backing: b}}, Keys: map[string]dhchap.Keys{authHost: keys},
	}}})
	require.NoError(tb, err)
	addr, err := t.Listen("127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		assert.NoError(tb, t.Close(ctx))
	})
	return t, addressID(tb, addr.String())
}

func someKeys() dhchap.Keys {
	return dhchap.Keys{Host: dhchap.NewSecret(dhchap.SHA256), Controller: dhchap.NewSecret(dhchap.SHA384)}
}

// use writes and reads through a queue of its own.
func use(t *testing.T, d nvmf.Device) nvmf.Queue {
	q, err := d.OpenQueue(t.Context(), 4)
	require.NoError(t, err)
	useQueue(t, q)
	return q
}

func useQueue(t *testing.T, q nvmf.Queue) {
	out, in := make([]byte, 4096), make([]byte, 4096)
	copy(out, t.Name())
	for _, cmd := range []*nvmf.Command{
		{Opcode: nvmf.Write, LBA: 7, Blocks: 1, Data: [][]byte{out}}, {Opcode: nvmf.Read, LBA: 7, Blocks: 1, Data: [][]byte{in}},
	} {
		q.Submit([]*nvmf.Command{cmd})
		require.NoError(t, q.Wait([]*nvmf.Command{cmd}))
	}
	assert.Equal(t, out, in)
}

func TestAuthentication(t *testing.T) {
	keys := someKeys()
	_, id := guarded(t, keys)
	for _, mutual := range []bool{false, true} {
		for _, hash := range []dhchap.Hash{dhchap.SHA256, dhchap.SHA384, dhchap.SHA512} {
			for group := dhchap.NullGroup; group <= dhchap.FFDHE4096; group++ { // the target takes no larger ones
				t.Run(fmt.Sprintf("%s %s mutual=%t", hash, group, mutual), func(t *testing.T) {
					o := tcp.Options{HostNQN: authHost, Keys: keys,
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
}

func TestAuthenticatedConformance(t *testing.T) {
	keys := someKeys()
	_, id := guarded(t, keys)
	blocktest.Run(t, func(t *testing.T) nvmf.Device {
		return openDevice(t, id, tcp.Options{HostNQN: authHost, Keys: keys, HeaderDigest: true})
	})
}

func TestAuthenticationRefused(t *testing.T) {
	keys := someKeys()
	_, id := guarded(t, keys)
	_, oneWay := guarded(t, dhchap.Keys{Host: keys.Host})
	_, open := embedded(t, 4096, 0)
	other := dhchap.NewSecret(dhchap.SHA256)
	for _, x := range []struct {
		name string
		at   nvmf.TransportID
		host string
		keys dhchap.Keys
		want error
		text string
	}{
		{"wrong key", id, authHost, dhchap.Keys{Host: other}, nvmf.ErrAuthentication, "target refuses host " + authHost},
		{"wrong key, mutual", id, authHost, dhchap.Keys{Host: other, Controller: keys.Controller}, nvmf.ErrAuthentication, "--dhchap-secret has the key"},
		{"target's key is wrong", id, authHost, dhchap.Keys{Host: keys.Host, Controller: other}, nvmf.ErrAuthentication,
			"host " + authHost + " refuses the target"},
		{"target has no key", oneWay, authHost, keys, nvmf.ErrAuthentication, "the target has a key of its own"},
		{"no secret", id, authHost, dhchap.Keys{}, nvmf.ErrAuthentication, "give one with --dhchap-secret"},
		{"only the target's secret", id, authHost, dhchap.Keys{Controller: other}, nvmf.ErrAuthentication, "give one with --dhchap-secret"},
		{"host without a key", id, authHost + "2", keys, nvmf.ErrHostRefused, authHost + "2"},
		{"target that does not ask", open, authHost, keys, nvmf.ErrAuthentication, "--dhchap-ctrl-secret"},
		{"target that does not ask, one way", open, authHost, dhchap.Keys{Host: keys.Host}, nil, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			d, err := tcp.Open(t.Context(), x.at, tcp.Options{HostNQN: x.host, Keys: x.keys})
			if x.want == nil {
				require.NoError(t, err)
				require.NoError(t, d.Close())
				return
			}
			require.ErrorIs(t, err, x.want)
			assert.ErrorContains(t, err, x.text)
			assert.NotErrorIs(t, err, nvmf.ErrConnectionLost)
		})
	}
	// Discovery does not authenticate. The log lists the subsystems that the host may use.
	entries, err := tcp.Discover(t.Context(), id, tcp.Options{HostNQN: authHost, Keys: keys})
	require.NoError(t, err)
	assert.Equal(t, 1, len(entries))
	entries, err = tcp.Discover(t.Context(), id, tcp.Options{HostNQN: authHost + "2"})
	require.NoError(t, err)
	assert.Empty(t, entries)
}

// TestAuthenticatedReset checks that a Reset authenticates again, on the admin
// queue and on the I/O queue.
func TestAuthenticatedReset(t *testing.T) {
	keys := someKeys()
	tgt, id := guarded(t, keys)
	d := openDevice(t, id, tcp.Options{HostNQN: authHost, Keys: keys})
	defer d.Close()
	q := use(t, d)
	defer q.Close()
	assert.Equal(t, 1, tgt.Cut(func(h target.Host) bool { return h.NQN == authHost }))
	cmd := &nvmf.Command{Opcode: nvmf.Flush}
	q.Submit([]*nvmf.Command{cmd})
	require.ErrorIs(t, q.Wait([]*nvmf.Command{cmd}), nvmf.ErrConnectionLost)
	require.NoError(t, q.Reset(t.Context()))
	useQueue(t, q)

	// When the target's key for the host has changed, Reset fails with ErrAuthentication.
	require.NoError(t, tgt.RemoveSubsystem(targetNQN))
	b, err := target.NewMemory(64*nvmf.MiB, 4096)
	require.NoError(t, err)
	require.NoError(t, tgt.AddSubsystem(target.Subsystem{NQN: targetNQN, Namespaces: []target.Namespace{{Backing: b}},
		Keys: map[string]dhchap.Keys{authHost: someKeys()}}))
	q.Submit([]*nvmf.Command{cmd})
	require.ErrorIs(t, q.Wait([]*nvmf.Command{cmd}), nvmf.ErrConnectionLost)
	refused := func(err error) bool { return errors.Is(err, nvmf.ErrAuthentication) }
	require.ErrorIs(t, patiently(t, refused, q.Reset), nvmf.ErrAuthentication)
}

// TestOddAuthentication checks the errors for targets that violate the
// authentication protocol.
func TestOddAuthentication(t *testing.T) {
	for name, x := range map[string]struct {
		receive func(c *fakepeer.Conn, sqe *nvme.SQE) error
		want    error
		text    string
	}{
		"refuses the command": {func(c *fakepeer.Conn, sqe *nvme.SQE) error {
			return c.Respond(sqe.CID(), nvme.StatusInvalidField|nvme.DNR, 0)
		}, nvmf.ErrAuthentication, "Authentication Receive: Invalid Field"},
		"no message": {func(c *fakepeer.Conn, sqe *nvme.SQE) error {
			return c.Respond(sqe.CID(), 0, 0)
		}, nvmf.ErrAuthentication, "refuses the target"},
		"a few bytes": {func(c *fakepeer.Conn, sqe *nvme.SQE) error {
			return c.Data(sqe.CID(), 0, []byte{1, 1, 0, 0}, pdu.FlagLast|pdu.FlagSuccess)
		}, nvmf.ErrAuthentication, "refuses the target"},
		"success at once": {func(c *fakepeer.Conn, sqe *nvme.SQE) error {
			return c.Data(sqe.CID(), 0, append([]byte{1, 3}, make([]byte, 14)...), pdu.FlagLast|pdu.FlagSuccess)
		}, nvmf.ErrAuthentication, "incorrect protocol message"},
		"more than there is space for": {func(c *fakepeer.Conn, sqe *nvme.SQE) error {
			return c.Data(sqe.CID(), 0, make([]byte, dhchap.MaxMessage+4), pdu.FlagLast|pdu.FlagSuccess)
		}, nvmf.ErrConnectionLost, "C2HData"},
		"hangs up":  {func(*fakepeer.Conn, *nvme.SQE) error { return io.EOF }, nvmf.ErrConnectionLost, "the wrong key (--dhchap-secret)"},
		"is silent": {func(*fakepeer.Conn, *nvme.SQE) error { return nil }, nvmf.ErrConnectionLost, "no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			p := fakepeer.New(nil)
			p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) (bool, error) {
				switch {
				case sqe.Opcode() != nvme.AdminFabrics:
					return false, nil
				case sqe.FabricsType() == nvme.FabricsConnect:
					return true, c.Respond(sqe.CID(), 0, nvme.ConnectResult(1, nvme.ConnectAuthTransaction))
				case sqe.FabricsType() == nvme.FabricsAuthReceive:
					return true, x.receive(c, sqe)
				}
				return true, c.Respond(sqe.CID(), 0, 0)
			}
			o := tcp.Options{HostNQN: authHost, Keys: someKeys(), ConnectTimeout: testTimeout}
			if name == "is silent" {
				o.ConnectTimeout = 500 * time.Millisecond
			}
			_, err := tcp.Open(t.Context(), p.Start(t), o)
			require.ErrorIs(t, err, x.want)
			assert.ErrorContains(t, err, x.text)
		})
	}
}
