package target_test

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tls"
	"nvmecr/nvmf/tlspsk"
)

// secured serves one namespace over TLS to testHost.
func secured(t testing.TB, long bool) (*target.Target, net.Addr, tlspsk.Key) {
	psk := tlspsk.New(long)
	c := one(memory(t, 1<<20, 4096))
	c.PSKs = map[string]tlspsk.Key{testHost: psk}
	tgt, addr := serve(t, c)
	return tgt, addr, psk
}

// TestTLSConformance runs the block device tests over TLS, with both cipher suites.
func TestTLSConformance(t *testing.T) {
	for name, long := range map[string]bool{"AES-128": false, "AES-256": true} {
		t.Run(name, func(t *testing.T) {
			blocktest.Run(t, func(t *testing.T) nvmf.Device {
				c := one(memory(t, 64<<20, 4096))
				psk := tlspsk.New(long)
				c.PSKs = map[string]tlspsk.Key{testHost: psk}
				_, addr := serve(t, c)
				d, err := tcp.Open(t.Context(), id(t, addr, 1), tcp.Options{HostNQN: testHost, PSK: psk})
				require.NoError(t, err)
				t.Cleanup(func() { assert.NoError(t, d.Close()) })
				return d
			})
		})
	}
}

// TestTLSRefused checks the errors for hosts without a key, with another key or with
// another name, and for a target without TLS.
func TestTLSRefused(t *testing.T) {
	_, addr, psk := secured(t, false)
	_, without := serve(t, one(memory(t, 1<<20, 4096)))
	for name, c := range map[string]struct {
		addr net.Addr
		o    tcp.Options
		is   error
		text string
	}{
		"no key":         {addr, tcp.Options{HostNQN: testHost}, nvmf.ErrUnreachable, "--tls-psk"},
		"another key":    {addr, tcp.Options{HostNQN: testHost, PSK: tlspsk.New(false)}, nvmf.ErrAuthentication, "check that --tls-psk"},
		"another length": {addr, tcp.Options{HostNQN: testHost, PSK: tlspsk.New(true)}, nvmf.ErrAuthentication, "check that --tls-psk"},
		"another name":   {addr, tcp.Options{HostNQN: testHost + "2", PSK: psk}, nvmf.ErrAuthentication, "--hostnqn"},
		"no TLS":         {without, tcp.Options{HostNQN: testHost, PSK: psk}, nil, "--tls-psk"},
	} {
		c.o.ConnectTimeout = 30 * time.Second
		_, err := tcp.Open(t.Context(), id(t, c.addr, 1), c.o)
		require.ErrorContains(t, err, c.text, name)
		if c.is != nil {
			assert.ErrorIs(t, err, c.is, name)
		}
		assert.NotContains(t, err.Error(), psk.Reveal()[20:40])
	}
}

// TestTLSIsOneHost checks that Connect is refused when it names another host or another
// subsystem than the TLS handshake did.
func TestTLSIsOneHost(t *testing.T) {
	other := "nqn.2014-08.org.example:other"
	psk := tlspsk.New(false)
	c := one(memory(t, 1<<20, 4096))
	c.PSKs = map[string]tlspsk.Key{testHost: psk, other: tlspsk.New(false)}
	_, addr := serve(t, c)
	for name, claim := range map[string]struct{ host, sub string }{
		"host": {other, testNQN}, "subsystem": {testHost, nvme.DiscoveryNQN},
	} {
		h := dialSecured(t, addr, psk, testHost, testNQN)
		s, d := h.connectCommand(0, nvme.CNTLIDDynamic)
		d.Set([16]byte{1}, nvme.CNTLIDDynamic, claim.sub, claim.host)
		h.capsule(s, d[:])
		assert.Equal(t, nvme.StatusConnectInvalidHost, h.response().Status().Code(), name)
	}
}

// TestTLSWithKeys checks that a host has to authenticate within TLS, too.
func TestTLSWithKeys(t *testing.T) {
	c, keys := guardedConfig(t)
	psk := tlspsk.New(false)
	c.PSKs = map[string]tlspsk.Key{testHost: psk}
	_, addr := serve(t, c)
	d, err := tcp.Open(t.Context(), id(t, addr, 1), tcp.Options{HostNQN: testHost, PSK: psk, Keys: keys})
	require.NoError(t, err)
	require.NoError(t, d.Close())
	_, err = tcp.Open(t.Context(), id(t, addr, 1), tcp.Options{HostNQN: testHost, PSK: psk, Keys: dhchap.Keys{Host: dhchap.NewSecret(dhchap.SHA256)}})
	assert.ErrorIs(t, err, nvmf.ErrAuthentication)
}

// dialSecured is dial with TLS, as one host for one subsystem.
func dialSecured(t testing.TB, addr net.Addr, psk tlspsk.Key, host, sub string) *client {
	h := connect(t, addr)
	f, err := h.c.(*net.TCPConn).File()
	require.NoError(t, err)
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd()))
	require.NoError(t, err)
	require.NoError(t, h.c.Close())
	identity, secret, err := psk.Derive(host, sub)
	require.NoError(t, err)
	fd, err = tls.Client(t.Context(), fd, tls.Key{Identity: identity, Secret: secret})
	require.NoError(t, err)
	plain := os.NewFile(uintptr(fd), "plain")
	h.c, err = net.FileConn(plain)
	require.NoError(t, errors.Join(err, plain.Close()))
	t.Cleanup(func() { _ = h.c.Close() })
	h.initialise(0)
	return h
}

func TestTLSDiscovery(t *testing.T) {
	_, addr, psk := secured(t, false)
	entries, err := tcp.Discover(t.Context(), id(t, addr, 1), tcp.Options{HostNQN: testHost, PSK: psk})
	require.NoError(t, err)
	require.Len(t, entries, 1)
	assert.EqualValues(t, nvme.TREQRequired, entries[0].TREQ()&3)
	assert.EqualValues(t, nvme.SecurityTLS13, entries[0].SecurityType())
	assert.Equal(t, addr.(*net.TCPAddr).IP.String(), entries[0].Address())
}

// TestSetPSKs checks that SetPSKs ends the connections of a host whose key has changed,
// and not those of a host whose key has not changed.
func TestSetPSKs(t *testing.T) {
	tgt, addr, psk := secured(t, false)
	open := func(k tlspsk.Key) (nvmf.Device, error) {
		return tcp.Open(t.Context(), id(t, addr, 1), tcp.Options{HostNQN: testHost, PSK: k})
	}
	d, err := open(psk)
	require.NoError(t, err)
	defer d.Close()
	q, err := d.OpenQueue(t.Context(), 4)
	require.NoError(t, err)
	defer q.Close()
	flush := func() error {
		return q.Wait(submit(q, &nvmf.Command{Opcode: nvmf.Flush}))
	}
	again, err := tlspsk.Parse(psk.Reveal())
	require.NoError(t, err)
	require.NoError(t, tgt.SetPSKs(map[string]tlspsk.Key{testHost: again}))
	require.NoError(t, flush(), "the same key")
	renewed := tlspsk.New(false)
	require.NoError(t, tgt.SetPSKs(map[string]tlspsk.Key{testHost: renewed}))
	assert.ErrorIs(t, flush(), nvmf.ErrConnectionLost)
	_, err = open(psk)
	assert.ErrorIs(t, err, nvmf.ErrAuthentication)
	d2, err := open(renewed)
	require.NoError(t, err)
	require.NoError(t, d2.Close())
	assert.ErrorContains(t, tgt.SetPSKs(nil), "switched on or off")
}
