package spdk_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/jsonrpc"
	"nvmecr/internal/shortdir"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/provisiontest"
	"nvmecr/nvmf/provision/spdk"
	"nvmecr/nvmf/provision/spdk/fakespdk"
)

// fixture is a fake SPDK.
type fixture struct {
	*fakespdk.Target
	socket string
	keys   string
}

var listen = &nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: "10.0.0.5", Service: "4420"}

func newFixture(t *testing.T) *fixture {
	f := &fixture{fakespdk.New(16 * nvmf.MiB), filepath.Join(shortdir.New(t), "s"), filepath.Join(t.TempDir(), "keys")}
	l, err := net.Listen("unix", f.socket)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); assert.NoError(t, <-ended) })
	return f
}

func (f *fixture) Open(*testing.T) provision.Provisioner {
	return spdk.New(spdk.Options{Socket: f.socket, Listen: listen, Keys: f.keys})
}

func (f *fixture) Connect(id nvmf.TransportID, host string, keys dhchap.Keys) (provisiontest.Volume, error) {
	n, err := f.Target.Connect(id, host, keys)
	if err != nil {
		return nil, err
	}
	return n, nil
}

func (f *fixture) Interrupt(n int, executed bool) func() bool {
	f.Fail(func() (bool, bool) {
		n--
		return n > 0 || n == 0 && executed, n > 0
	})
	return func() bool { return n <= 0 }
}

func (f *fixture) Recover(*testing.T)            { f.Fail(nil) }
func (f *fixture) Restart(*testing.T)            { f.Target.Restart() }
func (f *fixture) Leftovers(*testing.T) []string { return append(f.Names(), files(f.keys)...) }

// files returns the names of the files in a directory.
func files(dir string) []string {
	entries, _ := os.ReadDir(dir) // no entries if the directory does not exist
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (f *fixture) Traits() provisiontest.Traits {
	return provisiontest.Traits{Unit: fakespdk.Cluster, Limited: true, Limits: true, Forgetful: true}
}

func TestConformance(t *testing.T) {
	provisiontest.Run(t, func(t *testing.T) provisiontest.Fixture { return newFixture(t) })
}

var ctx = context.Background()

// TestLongestName checks that the volume names of a job with the longest name fit SPDK's
// limit.
func TestLongestName(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	job := strings.Repeat("j", provision.MaxJob)
	_, err := p.Create(ctx, job, nvmf.MiB)
	require.NoError(t, err)
	require.NoError(t, p.Delete(ctx, job))
	assert.Empty(t, f.Names())
	require.NoError(t, p.Close())
}

// TestMessages checks that errors name the cause and the remedy.
func TestMessages(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		o    spdk.Options
		do   func(p *spdk.Provisioner) error
		text string
	}{
		{spdk.Options{Socket: f.socket}, create, "?listen=ADDRESS:PORT"},
		{spdk.Options{Socket: f.socket, Store: "other"}, create, `no logical volume store "other": it has lvs0`},
		{spdk.Options{Socket: f.socket + "x"}, create, "start nvmf_tgt"},
		{spdk.Options{Socket: f.socket}, func(p *spdk.Provisioner) error { return p.Limit(ctx, "melt", 3*nvmf.MiB/2) }, "give 1 MiB or 2 MiB"},
		{spdk.Options{Socket: f.socket}, func(p *spdk.Provisioner) error { return p.Expose(ctx, "melt", nil, nil) }, "create it first"},
		{spdk.Options{Socket: f.socket, Listen: listen}, func(p *spdk.Provisioner) error {
			return errors.Join(create(p), p.Expose(ctx, "melt", []string{provisiontest.HostA},
				map[string]dhchap.Keys{provisiontest.HostA: {Host: dhchap.NewSecret(dhchap.SHA256)}}))
		}, "&keys=/DIRECTORY"},
	} {
		p := spdk.New(c.o)
		require.ErrorContains(t, c.do(p), c.text)
		require.NoError(t, p.Close())
	}
}

// TestNowhereToListen checks that a Create without an address to listen at fails, and leaves
// no volume.
func TestNowhereToListen(t *testing.T) {
	f := newFixture(t)
	p := spdk.New(spdk.Options{Socket: f.socket})
	require.ErrorIs(t, create(p), provision.ErrInvalid)
	assert.Empty(t, f.Names())
	require.NoError(t, p.Close())
}

func create(p *spdk.Provisioner) error { _, err := p.Create(ctx, "melt", nvmf.MiB); return err }

// TestSharedKeys checks that two targets with the same directory for keys do not remove each
// other's keys.
func TestSharedKeys(t *testing.T) {
	one, two := newFixture(t), newFixture(t)
	two.keys = one.keys
	host := []string{provisiontest.HostA}
	keys := map[string]dhchap.Keys{host[0]: {Host: dhchap.NewSecret(dhchap.SHA256)}}
	a, b := one.Open(t), two.Open(t)
	var targets []nvmf.TransportID
	for _, p := range []provision.Provisioner{a, b} {
		n, err := p.Create(ctx, "melt", nvmf.MiB)
		require.NoError(t, err)
		require.NoError(t, p.Expose(ctx, "melt", host, keys))
		targets = append(targets, n.Targets[0])
	}
	require.NoError(t, b.Expose(ctx, "melt", nil, nil))
	require.NoError(t, b.Expose(ctx, "melt", host, nil), "keys of the other target do not lock the job")
	require.NoError(t, b.Delete(ctx, "melt"))
	v, err := one.Connect(targets[0], host[0], keys[host[0]])
	require.NoError(t, err)
	require.NoError(t, v.Close())
	require.NoError(t, errors.Join(a.Delete(ctx, "melt"), a.Close(), b.Close()))
	assert.Empty(t, files(one.keys))
}

// TestOtherPrefix checks that a provisioner with another prefix neither serves an existing job
// again nor deletes it.
func TestOtherPrefix(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	n, err := p.Create(ctx, "melt", nvmf.MiB)
	require.NoError(t, err)
	require.NoError(t, p.Expose(ctx, "melt", []string{provisiontest.HostA}, nil))
	v, err := f.Connect(n.Targets[0], provisiontest.HostA, dhchap.Keys{})
	require.NoError(t, err)
	other := spdk.New(spdk.Options{Socket: f.socket, Listen: listen, Base: "nqn.2014-08.org.example:other"})
	for _, err := range []error{create(other), other.Delete(ctx, "melt")} {
		require.ErrorIs(t, err, provision.ErrInvalid)
		require.ErrorContains(t, err, provision.NQN(provision.Base, "melt"))
	}
	_, err = v.WriteAt(make([]byte, 4096), 0)
	require.NoError(t, err, "the host is still listed")
	require.NoError(t, v.Close())
	_, err = other.Create(ctx, "another", nvmf.MiB)
	require.NoError(t, err)
	require.NoError(t, errors.Join(other.Delete(ctx, "another"), p.Delete(ctx, "melt"), p.Close(), other.Close()))
	assert.Empty(t, f.Names())
}

// TestKeysOfOtherStore checks that Delete does not remove the keys of a job with the same name in
// another store. A target with two stores has one keyring for both.
func TestKeysOfOtherStore(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	const theirs = "nvmecr.melt.00112233445566778899aabbccddeeff"
	path := filepath.Join(t.TempDir(), "01234567-89ab-cdef-0123-456789abcdef."+theirs)
	require.NoError(t, os.WriteFile(path, []byte(dhchap.NewSecret(dhchap.SHA256).Reveal()), 0o600))
	rpc := jsonrpc.NewClient(f.socket)
	require.NoError(t, rpc.Call(ctx, "keyring_file_add_key", map[string]any{"name": theirs, "path": path}, nil))
	require.NoError(t, create(p.(*spdk.Provisioner)))
	host := []string{provisiontest.HostA}
	require.NoError(t, p.Expose(ctx, "melt", host, map[string]dhchap.Keys{host[0]: {Host: dhchap.NewSecret(dhchap.SHA256)}}))
	require.NoError(t, p.Delete(ctx, "melt"))
	var left []struct{ Name string }
	require.NoError(t, rpc.Call(ctx, "keyring_get_keys", nil, &left))
	require.Len(t, left, 1)
	assert.Equal(t, theirs, left[0].Name)
	assert.FileExists(t, path)
	require.NoError(t, errors.Join(p.Close(), rpc.Close()))
}

// TestAbandonedKeys checks that no keys stay on disk after an interrupted Expose, and
// after the deletion of a job by a provisioner that does not know the directory for
// keys.
func TestAbandonedKeys(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	host := []string{provisiontest.HostA}
	keys := map[string]dhchap.Keys{host[0]: {Host: dhchap.NewSecret(dhchap.SHA256)}}
	require.NoError(t, create(p.(*spdk.Provisioner)))
	require.NoError(t, p.Expose(ctx, "melt", host, keys))
	for _, name := range files(f.keys) {
		require.NoError(t, os.WriteFile(filepath.Join(f.keys, ".new-"+name), []byte("DHHC"), 0o600))
	}
	require.NoError(t, p.Expose(ctx, "melt", host, nil))
	assert.Len(t, files(f.keys), 1)
	other := spdk.New(spdk.Options{Socket: f.socket, Listen: listen})
	require.NoError(t, other.Delete(ctx, "melt"))
	assert.Empty(t, files(f.keys), "a provisioner without the option also removes the key files")
	require.NoError(t, errors.Join(p.Close(), other.Close()))
}

// TestForgottenKeys checks that a job with keys cannot be exposed without keys after the target has
// restarted and the directory for keys was lost.
func TestForgottenKeys(t *testing.T) {
	f := newFixture(t)
	host := []string{provisiontest.HostA}
	keys := map[string]dhchap.Keys{host[0]: {Host: dhchap.NewSecret(dhchap.SHA256)}}
	other := spdk.New(spdk.Options{Socket: f.socket, Listen: listen})
	p := f.Open(t)
	require.NoError(t, create(other))
	require.NoError(t, p.Expose(ctx, "melt", host, keys))
	require.NoError(t, os.RemoveAll(f.keys))
	for range 2 {
		f.Restart(t)
		require.NoError(t, create(other))
		for _, q := range []provision.Provisioner{p, other} {
			err := q.Expose(ctx, "melt", host, nil)
			require.ErrorIs(t, err, provision.ErrInvalid)
			require.ErrorContains(t, err, "--dhchap-keys")
		}
		require.ErrorContains(t, other.Expose(ctx, "melt", host, keys), "&keys=/DIRECTORY")
	}
	require.NoError(t, p.Expose(ctx, "melt", host, keys))
	require.NoError(t, other.Expose(ctx, "melt", nil, nil))
	require.NoError(t, other.Expose(ctx, "melt", host, nil), "after the namespace was hidden")
	require.NoError(t, p.Expose(ctx, "melt", host, keys))
	require.NoError(t, other.Delete(ctx, "melt"))
	require.NoError(t, create(other))
	require.NoError(t, other.Expose(ctx, "melt", host, nil), "a new namespace of the job")
	require.NoError(t, errors.Join(p.Delete(ctx, "melt"), p.Close(), other.Close()))
}
