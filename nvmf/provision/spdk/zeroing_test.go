package spdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

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

// made creates and exposes a job, and connects to its namespace.
func (f *fixture) made(t *testing.T, p provision.Provisioner, job string, size nvmf.Bytes) provisiontest.Volume {
	n, err := p.Create(ctx, job, size)
	require.NoError(t, err)
	require.NoError(t, p.Expose(ctx, job, []string{provisiontest.HostA}, nil))
	v, err := f.Connect(n.Targets[0], provisiontest.HostA, dhchap.Keys{})
	require.NoError(t, err)
	return v
}

// filled creates and exposes a job, and fills its namespace with the byte pattern.
func (f *fixture) filled(t *testing.T, p provision.Provisioner, job string, size nvmf.Bytes, pattern byte) {
	_, err := f.made(t, p, job, size).WriteAt(slices.Repeat([]byte{pattern}, int(size)), 0)
	require.NoError(t, err)
}

// holds checks that every byte of v is pattern.
func holds(t *testing.T, v provisiontest.Volume, pattern byte) {
	got := make([]byte, v.Size())
	_, err := v.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, -1, slices.IndexFunc(got, func(b byte) bool { return b != pattern }), "other data at")
}

// dirty creates a job with data, and interrupts the deletion of its volume as if the
// target had died.
func (f *fixture) dirty(t *testing.T, p provision.Provisioner, job string, size nvmf.Bytes) {
	f.filled(t, p, job, size, 0xee)
	f.die(t, job)
}

// die interrupts the deletion of a job's volume as if the target had died. The volume's
// clusters are then free, and not zeroed.
func (f *fixture) die(t *testing.T, job string) {
	f.freeing(t, job)
	f.Fail(func() (bool, bool) { return false, false })
	c := jsonrpc.NewClient(f.socket)
	require.Error(t, c.Call(ctx, "bdev_lvol_delete", map[string]any{"name": "lvs0/nvmecr-freed:" + job}, nil))
	require.NoError(t, c.Close())
	f.Fail(nil)
	require.NotContains(t, f.Names(), "nvmecr-freed:"+job)
}

// freeing executes the first steps of Delete, up to the deletion of the volume.
func (f *fixture) freeing(t *testing.T, job string) {
	f.raw(t, "bdev_lvol_rename", map[string]any{"old_name": "lvs0/nvmecr:" + job, "new_name": "nvmecr-freed:" + job})
	f.volume(t, "nvmecr-zeroing:"+job, true)
}

// raw calls a method of the target.
func (f *fixture) raw(t *testing.T, method string, params any) {
	c := jsonrpc.NewClient(f.socket)
	require.NoError(t, c.Call(ctx, method, params, nil))
	require.NoError(t, c.Close())
}

func (f *fixture) volume(t *testing.T, name string, thin bool) {
	f.raw(t, "bdev_lvol_create", map[string]any{"lvs_name": "lvs0", "lvol_name": name, "size_in_mib": 1, "thin_provision": thin, "clear_method": "write_zeroes"})
}

// TestZeroingInterrupted checks that free space with data of interrupted deletions is zeroed before
// it is used again. The call that zeroes it is interrupted at each step, too.
func TestZeroingInterrupted(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 3
	}
	for name, call := range map[string]func(p provision.Provisioner) error{
		"create": func(p provision.Provisioner) error { _, err := p.Create(ctx, "next", 4*nvmf.MiB); return err },
		"delete": func(p provision.Provisioner) error { return p.Delete(ctx, "melt") },
	} {
		for _, executed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, executed %t", name, executed), func(t *testing.T) {
				for n := 1; ; n += step {
					f := newFixture(t)
					p := f.Open(t)
					f.filled(t, p, "melt", 3*nvmf.MiB, 0xee)
					f.filled(t, p, "stays", 2*nvmf.MiB, 0x11)
					f.filled(t, p, "other", 5*nvmf.MiB, 0xee)
					f.die(t, "melt")
					f.die(t, "other")
					fired := f.Interrupt(n, executed)
					err := call(p)
					f.Recover(t)
					if fired() {
						require.Error(t, err)
						require.NoError(t, call(p))
					} else {
						require.NoError(t, err)
					}
					holds(t, f.made(t, p, "next", 4*nvmf.MiB), 0)
					holds(t, f.made(t, p, "all", 10*nvmf.MiB), 0)
					holds(t, f.made(t, p, "stays", 2*nvmf.MiB), 0x11)
					for _, job := range []string{"melt", "other", "all", "next", "stays"} {
						require.NoError(t, p.Delete(ctx, job))
					}
					require.Empty(t, f.Names())
					require.NoError(t, p.Close())
					if !fired() {
						t.Logf("interrupted at steps up to %d", n-step)
						break
					}
				}
			})
		}
	}
}

// TestZeroingInProgress checks that a deletion in progress delays only a Delete of the same job, and
// that no free space is zeroed because of it.
func TestZeroingInProgress(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	f.filled(t, p, "melt", 3*nvmf.MiB, 0xee)
	f.freeing(t, "melt")
	end := f.Begin("lvs0/nvmecr-freed:melt")
	holds(t, f.made(t, p, "next", 13*nvmf.MiB), 0)
	assert.NotContains(t, f.Names(), "nvmecr-zeroing::free")
	list, err := p.List(ctx)
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, provision.Freed, list[0].State, "melt is there until the end")

	other := f.Open(t)
	ended := make(chan error, 1)
	go func() { ended <- other.Delete(ctx, "melt") }()
	select {
	case err := <-ended:
		require.Fail(t, "it did not wait", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	end()
	require.NoError(t, <-ended)
	assert.NotContains(t, f.Names(), "nvmecr-zeroing:melt")

	f.volume(t, "nvmecr-zeroing:melt", true)
	f.volume(t, "nvmecr-freed:melt", false)
	defer f.Begin("lvs0/nvmecr-freed:melt")()
	impatient, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Delete(impatient, "melt"), context.DeadlineExceeded)
	require.NoError(t, errors.Join(p.Close(), other.Close()))
}

// TestZeroingUnsure checks that the marks for zeroing stay while some clusters are neither free nor
// part of a volume. Such clusters may be free and not zeroed after a restart of the target.
func TestZeroingUnsure(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	f.dirty(t, p, "melt", 3*nvmf.MiB)
	f.volume(t, "of somebody else's", false)
	end := f.Begin("lvs0/of somebody else's")
	marks := []string{"nvmecr-zeroing:melt", "nvmecr-zeroing::free"}
	for _, job := range []string{"one", "two"} {
		holds(t, f.made(t, p, job, 3*nvmf.MiB), 0)
		assert.Subset(t, f.Names(), marks)
	}
	end()
	holds(t, f.made(t, p, "three", 3*nvmf.MiB), 0)
	for _, m := range marks {
		assert.NotContains(t, f.Names(), m)
	}
	require.NoError(t, p.Close())
}

// TestZeroingPart checks zeroing after an earlier zeroing was interrupted whose volume did not have
// all free space.
func TestZeroingPart(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	f.dirty(t, p, "melt", 3*nvmf.MiB)
	f.volume(t, "nvmecr-zeroing::free", true)
	f.volume(t, "nvmecr-freed::free", false)
	holds(t, f.made(t, p, "next", 16*nvmf.MiB), 0)
	assert.Len(t, f.Names(), 2, "the volume and its subsystem")
	require.NoError(t, p.Close())
}

// TestZeroingByOthers checks that Create waits while another program zeroes the space
// that Create needs.
func TestZeroingByOthers(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	f.dirty(t, p, "melt", 3*nvmf.MiB)
	f.volume(t, "nvmecr-zeroing::free", true)
	f.raw(t, "bdev_lvol_create", map[string]any{"lvs_name": "lvs0", "lvol_name": "nvmecr-freed::free", "size_in_mib": 16, "clear_method": "write_zeroes"})
	end := f.Begin("lvs0/nvmecr-freed::free")
	ended := make(chan error, 1)
	go func() { _, err := p.Create(ctx, "next", 16*nvmf.MiB); ended <- err }()
	select {
	case err := <-ended:
		require.Fail(t, "it did not wait", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	end()
	require.NoError(t, <-ended)
	holds(t, f.made(t, p, "next", 16*nvmf.MiB), 0)
	require.NoError(t, p.Close())
}

// TestZeroingNothing checks that the marks for zeroing are removed when no space is free.
func TestZeroingNothing(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	f.dirty(t, p, "melt", 1*nvmf.MiB)
	f.raw(t, "bdev_lvol_create", map[string]any{"lvs_name": "lvs0", "lvol_name": "of somebody else's", "size_in_mib": 16})
	_, err := p.Create(ctx, "next", nvmf.MiB)
	require.ErrorIs(t, err, provision.ErrNoSpace)
	assert.Equal(t, []string{"of somebody else's"}, f.Names())
	require.NoError(t, p.Close())
}

// TestFreedBeside checks that Create deletes a freed volume of the same job, and does not change the
// namespace that is being served.
func TestFreedBeside(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	f.filled(t, p, "melt", 3*nvmf.MiB, 0x22)
	f.volume(t, "nvmecr-freed:melt", false)
	before := len(f.Names())
	holds(t, f.made(t, p, "melt", 3*nvmf.MiB), 0x22)
	assert.NotContains(t, f.Names(), "nvmecr-freed:melt")
	assert.Len(t, f.Names(), before-1)
	require.NoError(t, p.Close())
}

// TestSmallClusters checks that a store with clusters of less than 1 MiB is refused. Volumes have whole
// MiB, so no volume could have all free clusters of such a store.
func TestSmallClusters(t *testing.T) {
	socket := filepath.Join(shortdir.New(t), "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	serving, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- jsonrpc.Serve(serving, l, func(_ context.Context, method string, _ json.RawMessage) (any, error) {
			if method == "bdev_lvol_get_lvstores" {
				return []map[string]any{{"name": "lvs0", "cluster_size": 65536, "free_clusters": 1 << 20, "total_data_clusters": 1 << 20}}, nil
			}
			return []any{}, nil
		})
	}()
	p := spdk.New(spdk.Options{Socket: socket, Listen: listen})
	err = create(p)
	require.ErrorIs(t, err, provision.ErrUnsupported)
	require.ErrorContains(t, err, "--cluster-sz")
	require.NoError(t, p.Close())
	cancel()
	require.NoError(t, <-ended)
	assert.Greater(t, fakespdk.Cluster, nvmf.Bytes(65536))
}
