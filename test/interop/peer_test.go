//go:build interop

package interop

import (
	"context"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/target"
)

// size is the size of every namespace of other targets.
const size = 64 * nvmf.MiB

// nsids are the namespace ids of each subsystem, which need not be consecutive.
var nsids = []uint32{1, 2, 7}

// A peer is a kind of target. start starts one until the end of the test, or skips the test if it cannot.
type peer struct {
	name  string
	start func(t *testing.T) *running
}

// running is a running target.
type running struct {
	// subsystems by the LBA size of their namespaces, which have the NSIDs of nsids.
	subsystems map[nvmf.Bytes]nvmf.TransportID
	// ours is the target if it is our own.
	ours *target.Target
	// auth is the subsystem that requires authentication; nil if there is none.
	auth *authenticating
}

// authenticating is a subsystem for one host, with mutual authentication.
type authenticating struct {
	id     nvmf.TransportID
	host   string // NQN of the host
	keys   dhchap.Keys
	groups []dhchap.Group // groups that the target supports
	// choose makes the target use a hash and group, if it has such a setting; nil if the offer of the host decides.
	choose func(t *testing.T, h dhchap.Hash, g dhchap.Group)
}

// peers returns all kinds of targets.
func peers(t *testing.T) []peer {
	all := []peer{{"nvmecr", startOurs}, {"SPDK", startSPDK}}
	for _, k := range kernels(t) {
		all = append(all, peer{kernelName(k), func(t *testing.T) *running { return startNvmet(t, k) }})
	}
	return append(all, peer{"NVMECR_TEST_TARGET", startNamed})
}

// forPeers runs a test against every peer.
func forPeers(t *testing.T, test func(t *testing.T, r *running)) {
	for _, p := range peers(t) {
		t.Run(p.name, func(t *testing.T) { test(t, p.start(t)) })
	}
}

// startNamed uses the target of the environment variable.
func startNamed(t *testing.T) *running {
	s := os.Getenv("NVMECR_TEST_TARGET")
	if s == "" {
		t.Skip("NVMECR_TEST_TARGET is not set to the transport id of a target whose namespace may be overwritten")
	}
	id, err := nvmf.ParseTransportID(s)
	require.NoError(t, err)
	d := open(t, id, options{})
	defer func() { assert.NoError(t, d.Close()) }()
	return &running{subsystems: map[nvmf.Bytes]nvmf.TransportID{d.Identity().LBASize: id}}
}

// at returns a subsystem on 127.0.0.1.
func at(port int, nqn string) nvmf.TransportID {
	return nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: "127.0.0.1", Service: strconv.Itoa(port), SubNQN: nqn, NSID: 1}
}

// names of subsystems.
const authNQN = "nqn.2014-08.org.nvmecr:interop-auth"

func subsystemNQN(lba nvmf.Bytes) string {
	return "nqn.2014-08.org.nvmecr:interop-" + strconv.FormatUint(uint64(lba), 10)
}

const hostPrefix = "nqn.2014-08.org.nvmexpress:uuid:"

func newHost() string { return hostPrefix + uuid.NewString() }

func newKeys() dhchap.Keys {
	return dhchap.Keys{Host: dhchap.NewSecret(dhchap.SHA256), Controller: dhchap.NewSecret(dhchap.SHA384)}
}

var lbaSizes = []nvmf.Bytes{512, 4096}

// startOurs starts our own target, in this process.
func startOurs(t *testing.T) *running {
	r := &running{subsystems: map[nvmf.Bytes]nvmf.TransportID{}, auth: &authenticating{
		host: newHost(), keys: newKeys(),
		groups: []dhchap.Group{dhchap.NullGroup, dhchap.FFDHE2048, dhchap.FFDHE3072, dhchap.FFDHE4096}}}
	tgt, err := target.New(target.Config{})
	require.NoError(t, err)
	r.ours = tgt
	t.Cleanup(func() { assert.NoError(t, tgt.Close(context.Background())) })
	addr, err := tgt.Listen("127.0.0.1:0")
	require.NoError(t, err)
	port := addr.(*net.TCPAddr).Port
	for _, lba := range lbaSizes {
		s := target.Subsystem{NQN: subsystemNQN(lba)}
		for _, nsid := range nsids {
			s.Namespaces = append(s.Namespaces, memory(t, nsid, lba))
		}
		require.NoError(t, tgt.AddSubsystem(s))
		r.subsystems[lba] = at(port, s.NQN)
	}
	require.NoError(t, tgt.AddSubsystem(target.Subsystem{NQN: authNQN,
		Keys: map[string]dhchap.Keys{r.auth.host: r.auth.keys}, Namespaces: []target.Namespace{memory(t, 1, 4096)}}))
	r.auth.id = at(port, authNQN)
	return r
}

// memory returns a namespace large enough for XFS.
func memory(t *testing.T, nsid uint32, lba nvmf.Bytes) target.Namespace {
	b, err := target.NewMemory(320*nvmf.MiB, lba)
	require.NoError(t, err)
	return target.Namespace{NSID: nsid, Backing: b}
}
