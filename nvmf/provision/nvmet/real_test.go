package nvmet

import (
	"cmp"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/provisiontest"
)

// kernel is the Linux kernel's target.
type kernel struct{ fixture }

func (k *kernel) Open(*testing.T) provision.Provisioner {
	p := New(k.o)
	p.wrap = func(change func() error) error {
		if k.wrap != nil {
			return k.wrap(change)
		}
		return change()
	}
	return p
}

func (k *kernel) Connect(id nvmf.TransportID, host string, keys dhchap.Keys) (provisiontest.Volume, error) {
	return provisiontest.Dial(id, host, keys)
}

// Restart removes the subsystems and hosts, which a kernel forgets at a reboot.
func (k *kernel) Restart(t *testing.T) {
	p := New(k.o)
	names, err := p.tree.List("subsystems")
	require.NoError(t, err)
	for _, nqn := range names {
		if provision.JobOf(provision.Base, nqn) != "" {
			require.NoError(t, p.tearDown(nqn))
		}
	}
	entries, err := os.ReadDir(k.o.Dir)
	require.NoError(t, err)
	for _, e := range entries {
		if host, ok := strings.CutPrefix(e.Name(), keyName); ok {
			require.NoError(t, p.tree.Rmdir("hosts/"+host))
		}
	}
}

// Traits checks whether this kernel supports authentication.
func (k *kernel) Traits() provisiontest.Traits {
	traits := k.fixture.Traits()
	probe := filepath.Join(k.o.Root, "hosts", provisiontest.HostA+":probe")
	if os.Mkdir(probe, 0o755) == nil {
		_, err := os.Stat(filepath.Join(probe, hostKey))
		traits.Keyless = err != nil
		_ = unix.Rmdir(probe) // rmdir of configfs also removes the attributes in it
	}
	return traits
}

func (k *kernel) Leftovers(t *testing.T) []string {
	p := k.Open(t)
	list, err := p.List(ctx)
	require.NoError(t, err)
	entries, err := os.ReadDir(k.o.Dir)
	require.NoError(t, err)
	var names []string
	for _, n := range list {
		names = append(names, n.Job)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// newKernel returns the kernel's target; it needs root. NVMECR_TEST_NVMET is the
// target's directory in configfs. NVMECR_TEST_NVMET_DIR is a directory for namespaces,
// on a file system with direct I/O. NVMECR_TEST_NVMET_LISTEN is the address to listen
// at (127.0.0.1:4420).
func newKernel(t *testing.T) *kernel {
	root := os.Getenv("NVMECR_TEST_NVMET")
	if root == "" {
		t.Skip("NVMECR_TEST_NVMET does not name nvmet's directory in configfs to test with")
	}
	host, port, err := net.SplitHostPort(cmp.Or(os.Getenv("NVMECR_TEST_NVMET_LISTEN"), "127.0.0.1:4420"))
	require.NoError(t, err)
	k := &kernel{fixture{o: Options{Root: root, Dir: filepath.Join(os.Getenv("NVMECR_TEST_NVMET_DIR"), "namespaces"),
		Listen: &nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port}}}}
	t.Cleanup(func() { assert.Empty(t, k.Leftovers(t)) })
	return k
}

// TestKernel runs the conformance tests on the kernel's target.
func TestKernel(t *testing.T) {
	k := newKernel(t)
	provisiontest.Run(t, func(*testing.T) provisiontest.Fixture { return k })
}

// TestIsolation checks that the host of one job cannot affect another job.
func TestIsolation(t *testing.T) {
	provisiontest.Isolation(t, newKernel(t).Open(t), nil)
}
