package dial_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/dial"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tlspsk"
)

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	for _, c := range []struct {
		id   string
		want error
		text string
	}{
		{"file:" + path, nil, ""},
		{"file:" + path + "-none", os.ErrNotExist, path},
		{"mem:1M", nil, ""},
		{"trtype:TCP traddr:127.0.0.1 trsvcid:1 subnqn:nqn.x", nvmf.ErrUnreachable, "127.0.0.1:1"},
	} {
		id, err := nvmf.ParseTransportID(c.id)
		require.NoError(t, err)
		d, err := dial.Open(t.Context(), id, dial.Options{TCP: tcp.Options{ConnectTimeout: 5 * time.Minute}})
		if c.want != nil {
			assert.ErrorIs(t, err, c.want, c.id)
			assert.ErrorContains(t, err, c.text)
			assert.Nil(t, d)
			continue
		}
		require.NoError(t, err, c.id)
		assert.EqualValues(t, 1<<20, d.Identity().Capacity())
		assert.NoError(t, d.Close())
	}
	assert.Equal(t, "go", dial.Drivers()[0])
	_, err := dial.Open(t.Context(), nvmf.TransportID{Transport: "carrier pigeon"}, dial.Options{})
	assert.ErrorIs(t, err, nvmf.ErrUnsupported)
}

// TestWithoutSPDK checks that the errors for transports that need SPDK say how to
// build with SPDK.
func TestWithoutSPDK(t *testing.T) {
	if len(dial.Drivers()) > 1 {
		t.Skip("built with SPDK")
	}
	for _, c := range []struct {
		id     string
		driver dial.Driver
	}{
		{"trtype:RDMA traddr:10.0.0.1 subnqn:nqn.x", dial.Go},
		{"trtype:PCIe traddr:0000:01:00.0", dial.Go},
		{"trtype:TCP traddr:127.0.0.1 trsvcid:1 subnqn:nqn.x", dial.SPDK},
	} {
		id, err := nvmf.ParseTransportID(c.id)
		require.NoError(t, err)
		d, err := dial.Open(t.Context(), id, dial.Options{Driver: c.driver})
		assert.ErrorIs(t, err, nvmf.ErrUnsupported, c.id)
		assert.ErrorContains(t, err, "make SPDK=1")
		assert.Nil(t, d)
	}
}

// TestNoTLS checks that Open with a key for TLS fails if the transport or the driver
// has no TLS.
func TestNoTLS(t *testing.T) {
	for _, c := range []struct {
		id     string
		driver dial.Driver
		texts  []string
	}{
		{"trtype:RDMA traddr:10.0.0.1 subnqn:nqn.x", dial.Go, []string{"--tls-psk", "for TCP and not for RDMA"}},
		{"trtype:PCIe traddr:0000:01:00.0", dial.SPDK, []string{"--tls-psk", "for TCP and not for PCIe"}},
		{"trtype:TCP traddr:127.0.0.1 trsvcid:1 subnqn:nqn.x", dial.SPDK, []string{"make SPDK=1"}},
	} {
		if c.driver == dial.SPDK && len(dial.Drivers()) > 1 && strings.HasPrefix(c.id, "trtype:TCP") {
			continue
		}
		id, err := nvmf.ParseTransportID(c.id)
		require.NoError(t, err)
		psk := tlspsk.New(false)
		d, err := dial.Open(t.Context(), id, dial.Options{Driver: c.driver, TCP: tcp.Options{PSK: psk}})
		require.ErrorIs(t, err, nvmf.ErrUnsupported, c.id)
		for _, text := range c.texts {
			assert.ErrorContains(t, err, text)
		}
		assert.NotContains(t, err.Error(), psk.Reveal()[17:30])
		assert.Nil(t, d)
	}
}

// TestSecretsByEitherDriver checks that Open with keys for both ends fails with each
// driver if the target does not authenticate.
func TestSecretsByEitherDriver(t *testing.T) {
	b, err := target.NewMemory(nvmf.MiB, 4096)
	require.NoError(t, err)
	tgt, err := target.New(target.Config{Subsystems: []target.Subsystem{{NQN: "nqn.2014-08.org.example:x", Namespaces: []target.Namespace{{Backing: b}}}}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tgt.Close(context.Background())) })
	addr, err := tgt.Listen("127.0.0.1:0")
	require.NoError(t, err)
	port := addr.(*net.TCPAddr).Port
	id := nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: "127.0.0.1", Service: strconv.Itoa(port), SubNQN: "nqn.2014-08.org.example:x", NSID: 1}
	keys := dhchap.Keys{Host: dhchap.NewSecret(dhchap.SHA256), Controller: dhchap.NewSecret(dhchap.SHA256)}
	for _, driver := range []dial.Driver{dial.Go, dial.SPDK}[:len(dial.Drivers())] {
		d, err := dial.Open(t.Context(), id, dial.Options{Driver: driver, TCP: tcp.Options{Keys: keys}})
		assert.ErrorIs(t, err, nvmf.ErrAuthentication, "%s: the target does not prove itself", driver)
		assert.Nil(t, d)
	}
}
