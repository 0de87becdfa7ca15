//go:build spdk

package spdk_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/busy"
	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/spdk"
	"nvmecr/nvmf/tlspsk"
)

const tlsHost = "nqn.2014-08.org.example:tls"

// usableKey returns a key whose derived key does not begin with a zero byte. SPDK would
// treat such a key as none.
func usableKey(t *testing.T, id nvmf.TransportID) tlspsk.Key {
	for {
		k := tlspsk.New(false)
		_, key, err := k.Derive(tlsHost, id.SubNQN)
		require.NoError(t, err)
		if key[0] != 0 {
			return k
		}
	}
}

// TestKeysForNoTLS checks that Open with a key for TLS fails if TLS cannot be used.
func TestKeysForNoTLS(t *testing.T) {
	id := embedded(t, 4096, 0).id(t)
	zero := usableKey(t, id)
	for key := []byte{1}; key[0] != 0; {
		zero = tlspsk.New(true)
		var err error
		_, key, err = zero.Derive(tlsHost, id.SubNQN)
		require.NoError(t, err)
	}
	long, rdma := id, id
	long.SubNQN, rdma.Transport = strings.Repeat("n", 220), nvmf.RDMA
	for name, x := range map[string]struct {
		id   nvmf.TransportID
		key  tlspsk.Key
		want error
		text string
	}{
		"a target without TLS":    {id, usableKey(t, id), nvmf.ErrAuthentication, "does not use TLS"},
		"a key that SPDK ignores": {id, zero, nvmf.ErrUnsupported, "another key"},
		"long names":              {long, usableKey(t, id), nvmf.ErrUnsupported, "too long for TLS"},
		"RDMA":                    {rdma, usableKey(t, id), nvmf.ErrUnsupported, "for TCP and not for RDMA"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spdk.Open(t.Context(), x.id, spdk.Options{HostNQN: tlsHost, PSK: x.key})
			t.Log(err)
			require.ErrorIs(t, err, x.want)
			assert.ErrorContains(t, err, x.text)
			assert.NotContains(t, err.Error(), x.key.Reveal()[17:40])
		})
	}
}

// TestSilenceForTLS checks Open with TLS when the target does not answer, and when it closes the
// connection.
func TestSilenceForTLS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	hangUp := make(chan bool, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if <-hangUp {
				c.Close()
			}
		}
	}()
	id := nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: "127.0.0.1",
		Service: strconv.Itoa(l.Addr().(*net.TCPAddr).Port), SubNQN: targetNQN, NSID: 1}
	for _, ends := range []bool{false, true} {
		hangUp <- ends
		began, clock := time.Now(), busy.Start(t)
		_, err = spdk.Open(t.Context(), id, spdk.Options{HostNQN: tlsHost, PSK: usableKey(t, id), ConnectTimeout: time.Second})
		t.Log(time.Since(began).Round(time.Millisecond), err)
		require.ErrorIs(t, err, nvmf.ErrUnreachable)
		assert.Less(t, clock.Now(), 15*time.Second)
	}
}

// tlsEnv is the transport id of a target with TLS whose namespace may be overwritten.
// tlsKeysEnv names a file with a line HOSTNQN KEY [HOSTSECRET TARGETSECRET] for each host of
// the target. The secrets are for in-band authentication.
const (
	tlsEnv     = "NVMECR_TEST_SPDK_TLS"
	tlsKeysEnv = "NVMECR_TEST_SPDK_TLS_KEYS"
)

func tlsPeer(t *testing.T) (id nvmf.TransportID, hosts []spdk.Options) {
	text, err := os.ReadFile(os.Getenv(tlsKeysEnv))
	if err != nil {
		t.Skipf("%s is not set to the transport id of a target with TLS, and %s to a file of keys", tlsEnv, tlsKeysEnv)
	}
	id, err = nvmf.ParseTransportID(os.Getenv(tlsEnv))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		o := spdk.Options{HostNQN: words[0]}
		o.PSK, err = tlspsk.Parse(words[1])
		require.NoError(t, err)
		if len(words) > 2 {
			o.Keys.Host, err = dhchap.ParseSecret(words[2])
			require.NoError(t, err)
			o.Keys.Controller, err = dhchap.ParseSecret(words[3])
			require.NoError(t, err)
		}
		hosts = append(hosts, o)
	}
	return id, hosts
}

func TestTLS(t *testing.T) {
	id, hosts := tlsPeer(t)
	for _, o := range hosts {
		t.Run(o.PSK.String()+" "+o.Keys.Host.String(), func(t *testing.T) {
			blocktest.Run(t, func(t *testing.T) nvmf.Device { return openDevice(t, id, o) })
			o.HeaderDigest, o.DataDigest = true, true
			d := openDevice(t, id, o)
			use(t, d)
			require.NoError(t, d.Close())
		})
	}
}

func TestTLSRefused(t *testing.T) {
	id, hosts := tlsPeer(t)
	for _, good := range hosts {
		wrong, stranger, without, unproved := good, good, good, good
		wrong.PSK = usableKey(t, id)
		stranger.HostNQN += "2"
		without.PSK = tlspsk.Key{}
		unproved.Keys.Host = dhchap.NewSecret(dhchap.SHA256)
		for name, x := range map[string]struct {
			o    spdk.Options
			want error
			text string
		}{
			"wrong key":    {wrong, nvmf.ErrAuthentication, "check that --tls-psk"},
			"another host": {stranger, nvmf.ErrAuthentication, "check that --tls-psk"},
			"no key":       {without, nvmf.ErrUnreachable, "--tls-psk"},
			"wrong secret": {unproved, nvmf.ErrAuthentication, "--dhchap-secret"},
		} {
			if name == "wrong secret" && good.Keys.Host.IsZero() {
				continue
			}
			t.Run(good.PSK.String()+" "+good.Keys.Host.String()+" "+name, func(t *testing.T) {
				began, clock := time.Now(), busy.Start(t)
				_, err := spdk.Open(t.Context(), id, x.o)
				t.Log(time.Since(began).Round(time.Millisecond), err)
				require.ErrorIs(t, err, x.want)
				assert.ErrorContains(t, err, x.text)
				assert.Less(t, clock.Now(), 5*time.Second)
			})
		}
	}
}

// TestTLSReset checks that Reset restores lost connections with TLS, and that a lost connection
// causes no SIGPIPE.
func TestTLSReset(t *testing.T) {
	id, hosts := tlsPeer(t)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGPIPE)
	defer signal.Stop(signals)
	for _, o := range hosts {
		d := openDevice(t, id, o)
		q := openQueue(t, d, 4)
		for range 3 {
			useQueue(t, q)
			cut(t, id)
			block := bytes.Repeat([]byte("lost"), int(d.Identity().LBASize)/4)
			require.ErrorIs(t, do(q, &nvmf.Command{Opcode: nvmf.Write, Blocks: 1, Data: [][]byte{block}}), nvmf.ErrConnectionLost)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			require.NoError(t, q.Reset(ctx))
			cancel()
		}
		useQueue(t, q)
		cut(t, id)
		require.NoError(t, q.Close())
		require.NoError(t, d.Close())
	}
	select {
	case s := <-signals:
		assert.Fail(t, "the application gets a signal", "%s", s)
	default:
	}
}

// cut shuts down all connections of this process to a target.
func cut(t *testing.T, id nvmf.TransportID) {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	n := 0
	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		peer, _ := unix.Getpeername(fd)
		if a, ok := peer.(*unix.SockaddrInet4); ok && strconv.Itoa(a.Port) == id.Service {
			require.NoError(t, unix.Shutdown(fd, unix.SHUT_RDWR))
			n++
		}
	}
	require.NotZero(t, n, "there is no connection")
}
