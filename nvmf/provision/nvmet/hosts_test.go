package nvmet

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/provisiontest"
)

func keysOf(host string) map[string]dhchap.Keys {
	return map[string]dhchap.Keys{host: {Host: dhchap.NewSecret(dhchap.SHA256)}}
}

// exposed creates jobs, exposes them to one host, and connects the host.
func exposed(t *testing.T, f *fixture, p provision.Provisioner, keys map[string]dhchap.Keys, jobs ...string) map[string]provisiontest.Volume {
	volumes := map[string]provisiontest.Volume{}
	for _, job := range jobs {
		n, err := p.Create(ctx, job, nvmf.MiB)
		require.NoError(t, err)
		require.NoError(t, p.Expose(ctx, job, []string{provisiontest.HostA}, keys))
		v, err := f.Connect(n.Targets[0], provisiontest.HostA, keys[provisiontest.HostA])
		require.NoError(t, err)
		volumes[job] = v
		t.Cleanup(func() { assert.NoError(t, v.Close()) })
	}
	return volumes
}

func connected(v provisiontest.Volume) bool {
	_, err := v.ReadAt(make([]byte, 4096), 0)
	return err == nil
}

// TestRenewal checks that a new key of a host disconnects the host from all subsystems
// that list it, whether the job was exposed to the host before or not.
func TestRenewal(t *testing.T) {
	host := []string{provisiontest.HostA}
	for _, job := range []string{"one", "new"} {
		f := newFixture(t)
		p := f.Open(t)
		old, keys := keysOf(host[0]), keysOf(host[0])
		volumes := exposed(t, f, p, old, "one", "two")
		_, err := p.Create(ctx, "new", nvmf.MiB)
		require.NoError(t, err)
		require.NoError(t, p.Expose(ctx, job, host, old))
		assert.True(t, connected(volumes["one"]) && connected(volumes["two"]), "the same key")
		require.NoError(t, p.Expose(ctx, job, host, keys))
		assert.False(t, connected(volumes["one"]), job)
		assert.False(t, connected(volumes["two"]), job)
		list, err := p.List(ctx)
		require.NoError(t, err)
		for _, n := range list {
			assert.Equal(t, provision.Ready, n.State, n.Job)
			if n.Job == "new" && job != "new" {
				continue
			}
			_, err = f.Connect(n.Targets[0], host[0], old[host[0]])
			require.ErrorIs(t, err, nvmf.ErrAuthentication)
			v, err := f.Connect(n.Targets[0], host[0], keys[host[0]])
			require.NoError(t, err)
			require.NoError(t, v.Close())
		}
	}
}

// TestForeignKey checks that the provisioner does not change a key that it has not set.
func TestForeignKey(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	theirs, attr := keysOf(provisiontest.HostA), "hosts/"+provisiontest.HostA+"/"+hostKey
	require.NoError(t, f.tree.Mkdir("hosts/"+provisiontest.HostA))
	require.NoError(t, f.tree.Write(attr, theirs[provisiontest.HostA].Host.Reveal()))
	require.NoError(t, f.tree.Hide(attr))
	volumes := exposed(t, f, p, theirs, "one")
	err := p.Expose(ctx, "one", []string{provisiontest.HostA}, keysOf(provisiontest.HostA))
	require.ErrorIs(t, err, provision.ErrInvalid)
	require.ErrorContains(t, err, provisiontest.HostA)
	assert.True(t, connected(volumes["one"]))
	require.NoError(t, p.Expose(ctx, "one", []string{provisiontest.HostA}, nil))
	require.NoError(t, p.Delete(ctx, "one"))
	key, err := f.tree.Read(attr)
	require.NoError(t, err)
	assert.Equal(t, theirs[provisiontest.HostA].Host.Reveal(), key)
}

// TestKeyless checks that an Expose with keys fails on a kernel without authentication,
// and that it disconnects no host.
func TestKeyless(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	volumes := exposed(t, f, p, nil, "one")
	for _, attr := range []string{hostKey, controllerKey} {
		require.NoError(t, os.Remove(f.o.Root+"/hosts/"+provisiontest.HostA+"/"+attr))
	}
	require.ErrorIs(t, p.Expose(ctx, "one", []string{provisiontest.HostA}, keysOf(provisiontest.HostA)), provision.ErrUnsupported)
	assert.True(t, connected(volumes["one"]))
	require.NoError(t, p.Expose(ctx, "one", []string{provisiontest.HostA}, nil), "the failed Expose has locked the job")
	assert.Len(t, f.Leftovers(t), 2, "only the subsystem and the image")
}

// TestFailedRenewal checks that all subsystems are at their port after one change of a
// renewal has failed, unless that change was a link to the port.
func TestFailedRenewal(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	exposed(t, f, p, keysOf(provisiontest.HostA), "one", "two")
	for fail := 1; ; fail++ {
		n, failed := 0, errors.New("this one")
		linked := 0
		f.wrap = func(change func() error) error {
			if n++; n == fail {
				return failed
			}
			return change()
		}
		err := p.Expose(ctx, "one", []string{provisiontest.HostA}, keysOf(provisiontest.HostA))
		f.wrap = nil
		list, e := p.List(ctx)
		require.NoError(t, e)
		for _, x := range list {
			linked += len(x.Targets)
		}
		if err == nil {
			assert.Greater(t, fail, 5, "steps")
			assert.Equal(t, 2, linked)
			return
		}
		require.ErrorIs(t, err, failed)
		want := 2
		if strings.Contains(err.Error(), "cannot listen") {
			want = 1 // the failed change was a link to the port
		}
		assert.Equal(t, want, linked, "change %d: %v", fail, err)
		for _, job := range []string{"one", "two"} {
			_, err := p.Create(ctx, job, nvmf.MiB)
			require.NoError(t, err)
		}
	}
}

// TestKilledRenewal kills a program after each change of a renewal. After the call is
// repeated, all jobs and all subsystems of other programs must be at their port.
func TestKilledRenewal(t *testing.T) {
	const theirs = "nqn.2014-08.org.example:theirs"
	host := provisiontest.HostA
	for last := 1; ; last++ {
		f := newFixture(t)
		p := f.Open(t)
		old, keys := keysOf(host), keysOf(host)
		exposed(t, f, p, old, "one", "two")
		ports, err := f.tree.List("ports")
		require.NoError(t, err)
		require.NoError(t, f.tree.Mkdir(subsystem(theirs)))
		require.NoError(t, f.tree.Link("hosts/"+host, allowedHosts(theirs)+"/"+host))
		require.NoError(t, f.tree.Link(subsystem(theirs), portLink(ports[0], theirs)))
		made := 0
		f.wrap = func(change func() error) error {
			if err := change(); err != nil {
				return err
			}
			if made++; made == last {
				panic(errDied)
			}
			return nil
		}
		err = func() (err error) {
			defer func() {
				if recover() != nil {
					err = errDied
				}
			}()
			return p.Expose(ctx, "one", []string{host}, keys)
		}()
		f.wrap = nil
		p = f.Open(t)
		require.NoError(t, p.Expose(ctx, "one", []string{host}, keys))
		served, e := f.tree.List("ports/" + ports[0] + "/subsystems")
		require.NoError(t, e)
		assert.Len(t, served, 3, "change %d", last)
		for _, name := range f.Leftovers(t) {
			assert.NotContains(t, name, awayName)
		}
		if err == nil {
			assert.Greater(t, last, 10, "steps")
			return
		}
		require.ErrorIs(t, err, errDied)
	}
}
