package target_test

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
	"nvmecr/nvmf/memdev"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

const testNQN = "nqn.2014-08.org.example:test"

// serve starts a target on a free port. The target is closed at the end of the test.
func serve(t testing.TB, c target.Config) (*target.Target, net.Addr) {
	tgt, err := target.New(c)
	require.NoError(t, err)
	addr, err := tgt.Listen("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		assert.NoError(t, tgt.Close(ctx))
	})
	return tgt, addr
}

// one returns a configuration of one subsystem with one namespace.
func one(b target.Backing) target.Config {
	return target.Config{Subsystems: []target.Subsystem{{NQN: testNQN, Namespaces: []target.Namespace{{NSID: 1, Backing: b}}}}}
}

func id(t testing.TB, addr net.Addr, nsid int) nvmf.TransportID {
	tcpAddr := addr.(*net.TCPAddr)
	id, err := nvmf.ParseTransportID(fmt.Sprintf("trtype:TCP adrfam:IPv4 traddr:%s trsvcid:%d subnqn:%s ns:%d",
		tcpAddr.IP, tcpAddr.Port, testNQN, nsid))
	require.NoError(t, err)
	return id
}

func memory(t testing.TB, size, lba nvmf.Bytes) target.Backing {
	b, err := target.NewMemory(size, lba)
	require.NoError(t, err)
	return b
}

func file(t testing.TB, size, lba nvmf.Bytes) target.Backing {
	path := filepath.Join(t.TempDir(), "ns")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, int64(size)))
	b, err := target.OpenFile(path, lba)
	require.NoError(t, err)
	return b
}

func wrapped(t testing.TB, size, lba nvmf.Bytes) target.Backing {
	d, err := memdev.New(size, lba, memdev.Options{VolatileWriteCache: true})
	require.NoError(t, err)
	return target.NewDevice(d)
}

// TestConformance runs the block device tests through the initiator, with every kind of
// backing, and with in-capsule data, R2T and digests.
func TestConformance(t *testing.T) {
	for _, backing := range []struct {
		name string
		make func(testing.TB, nvmf.Bytes, nvmf.Bytes) target.Backing
	}{{"memory", memory}, {"file", file}, {"device", wrapped}} {
		for _, way := range []struct {
			name      string
			lba       nvmf.Bytes
			inCapsule nvmf.Bytes
			options   tcp.Options
		}{
			{"in capsule", 4096, 0, tcp.Options{}},
			{"R2T", 512, 512, tcp.Options{}},
			{"digests", 4096, 8192, tcp.Options{HeaderDigest: true, DataDigest: true}},
		} {
			t.Run(backing.name+" "+way.name, func(t *testing.T) {
				t.Parallel()
				blocktest.Run(t, func(t *testing.T) nvmf.Device {
					c := one(backing.make(t, nvmf.Bytes(blocktest.MinimumBlocks)*way.lba, way.lba))
					c.InCapsule = way.inCapsule
					_, addr := serve(t, c)
					d, err := tcp.Open(context.Background(), id(t, addr, 1), way.options)
					require.NoError(t, err)
					return d
				})
			})
		}
	}
}
