//go:build interop

package interop

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tlspsk"
)

// Subsystems with TLS. In the second one hosts of our target have to authenticate, too.
const (
	tlsNQN     = "nqn.2014-08.org.nvmecr:interop-tls"
	tlsAuthNQN = tlsNQN + "-auth"
)

// A tlsHost is a host of a subsystem with TLS.
type tlsHost struct {
	nqn       string
	subsystem string
	key       tlspsk.Key
	keys      dhchap.Keys // zero: it does not authenticate within TLS
}

func (h *tlsHost) options() options { return options{HostNQN: h.nqn, PSK: h.key, Keys: h.keys} }

func (h *tlsHost) String() string {
	if !h.keys.Host.IsZero() {
		return h.key.String() + " with authentication"
	}
	return h.key.String()
}

// newTLSHosts returns hosts with keys of each length, and one that also authenticates, in a subsystem.
func newTLSHosts(t *testing.T, auth string) (hosts []tlsHost) {
	for i := range 3 {
		h := tlsHost{nqn: newHost(), subsystem: tlsNQN}
		if i == 2 {
			h.subsystem, h.keys = auth, newKeys()
		}
		for { // SPDK rejects one of 256 random keys
			h.key = tlspsk.New(i == 1)
			_, derived, err := h.key.Derive(h.nqn, h.subsystem)
			require.NoError(t, err)
			if derived[0] != 0 {
				break
			}
		}
		hosts = append(hosts, h)
	}
	return hosts
}

// startSPDKTLS starts SPDK's target with a subsystem that requires TLS, and returns its hosts.
func startSPDKTLS(t *testing.T) (nvmf.TransportID, []tlsHost) {
	rpc := startTransport(t)
	call(t, rpc, "nvmf_create_subsystem", params{"nqn": tlsNQN, "serial_number": "INTEROPTLS"})
	spdkMemory(t, rpc, "tls", 4096)
	call(t, rpc, "nvmf_subsystem_add_ns", params{"nqn": tlsNQN, "namespace": params{"bdev_name": "tls"}})
	port, hosts := freePort(t), newTLSHosts(t, tlsNQN)
	call(t, rpc, "nvmf_subsystem_add_listener", params{"nqn": tlsNQN, "secure_channel": true,
		"listen_address": params{"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": fmt.Sprint(port)}})
	for i, h := range hosts {
		p := params{"nqn": tlsNQN, "host": h.nqn}
		for name, key := range h.named(fmt.Sprint(i)) {
			addKey(t, rpc, key.name, key.key)
			p[name] = key.name
		}
		call(t, rpc, "nvmf_subsystem_add_host", p)
	}
	return at(port, tlsNQN), hosts
}

// A namedKey is a key with its name in SPDK.
type namedKey struct {
	key  interface{ Reveal() string }
	name string
}

// named returns the keys of a host by their names in SPDK.
func (h *tlsHost) named(suffix string) map[string]namedKey {
	all := map[string]namedKey{"psk": {h.key, "psk" + suffix}}
	if !h.keys.Host.IsZero() {
		all["dhchap_key"] = namedKey{h.keys.Host, "host" + suffix}
		all["dhchap_ctrlr_key"] = namedKey{h.keys.Controller, "controller" + suffix}
	}
	return all
}

// TestTLSToSPDK tests our initiator with TLS at SPDK's target.
func TestTLSToSPDK(t *testing.T) {
	id, hosts := startSPDKTLS(t)
	for i := range hosts {
		h := &hosts[i]
		t.Run(h.String(), func(t *testing.T) {
			for _, d := range digestFlags {
				t.Run(d.name, func(t *testing.T) {
					o := h.options()
					o.HeaderDigest, o.DataDigest = d.header, d.data
					use(t, open(t, id, o))
				})
			}
			refuseTLS(t, id, h)
		})
	}
	t.Run("conformance", func(t *testing.T) {
		blocktest.Run(t, func(t *testing.T) nvmf.Device { return open(t, id, hosts[0].options()) })
	})
}

// refuseTLS tries connections that a target must refuse.
func refuseTLS(t *testing.T, id nvmf.TransportID, h *tlsHost) {
	wrong, stranger, without := h.options(), h.options(), h.options()
	wrong.PSK = tlspsk.New(false)
	stranger.HostNQN = newHost()
	without.PSK = tlspsk.Key{}
	for name, o := range map[string]options{"wrong key": wrong, "another host": stranger, "no key": without} {
		t.Run(name, func(t *testing.T) {
			_, err := tcp.Open(t.Context(), id, o)
			t.Log(err)
			assert.ErrorContains(t, err, "--tls-psk")
		})
	}
}

// startOursTLS starts our target with TLS.
func startOursTLS(t *testing.T) (port int, hosts []tlsHost) {
	hosts = newTLSHosts(t, tlsAuthNQN)
	c, keys := target.Config{PSKs: map[string]tlspsk.Key{}}, map[string]dhchap.Keys{}
	for _, h := range hosts {
		c.PSKs[h.nqn] = h.key
		if !h.keys.Host.IsZero() {
			keys[h.nqn] = h.keys
		}
	}
	tgt, err := target.New(c)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tgt.Close(context.Background())) })
	addr, err := tgt.Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, tgt.AddSubsystem(target.Subsystem{NQN: tlsNQN, Namespaces: []target.Namespace{memory(t, 1, 4096)}}))
	require.NoError(t, tgt.AddSubsystem(target.Subsystem{NQN: tlsAuthNQN, Keys: keys, Namespaces: []target.Namespace{memory(t, 1, 4096)}}))
	return addr.(*net.TCPAddr).Port, hosts
}

// TestTLSFromSPDK tests SPDK's initiator with TLS at our target: with its tools, and with a target of SPDK whose namespace is on our
// target.
func TestTLSFromSPDK(t *testing.T) {
	to, hosts := startOursTLS(t)
	id := at(to, tlsNQN)
	t.Run("perf", func(t *testing.T) {
		key := filepath.Join(t.TempDir(), "key")
		require.NoError(t, os.WriteFile(key, []byte(hosts[0].key.Reveal()), 0o600))
		for _, size := range []string{"4096", "1048576"} {
			assert.Positive(t, perf(t, "-c", "[1]", "-q", "8", "-o", size, "-w", "randrw", "-M", "50", "-t", "1",
				"-S", "ssl", "--psk-path", key, "-r", spdkID(id)+" hostnqn:"+hosts[0].nqn))
		}
	})
	rpc, port := startTransport(t), freePort(t)
	for i := range hosts {
		h := &hosts[i]
		t.Run(h.String(), func(t *testing.T) {
			p := params{"hostnqn": h.nqn}
			for name, key := range h.named(fmt.Sprint(i)) {
				addKey(t, rpc, key.name, key.key)
				p[name] = key.name
			}
			through := attach(t, rpc, at(to, h.subsystem), port, fmt.Sprint("tls", i), p)
			use(t, open(t, through, options{}))
			if i == 0 {
				blocktest.Run(t, func(t *testing.T) nvmf.Device { return open(t, through, options{}) })
			}
		})
	}
	addKey(t, rpc, "wrong", tlspsk.New(false))
	for name, p := range map[string]params{
		"wrong key":    {"hostnqn": hosts[0].nqn, "psk": "wrong"},
		"another host": {"hostnqn": newHost(), "psk": "psk0"},
		"no key":       {"hostnqn": hosts[0].nqn},
	} {
		t.Run(name, func(t *testing.T) {
			p["name"], p["trtype"], p["adrfam"], p["traddr"], p["trsvcid"], p["subnqn"] = "refused", "TCP", "IPv4", id.Address, id.Service, id.SubNQN
			assert.Error(t, rpc.Call(t.Context(), "bdev_nvme_attach_controller", p, nil))
		})
	}
}
