package provisiontest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/busy"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
)

// NQNs of two hosts that must not see each other's namespaces.
const (
	HostA = "nqn.2014-08.org.nvmexpress:uuid:11111111-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
	HostB = "nqn.2014-08.org.nvmexpress:uuid:22222222-bbbb-4bbb-8bbb-bbbbbbbbbbbb"
)

// size is the size of namespaces in these tests before rounding.
const size = 2*nvmf.MiB - 1

var ctx = context.Background()

// Run checks that a target's provisioner implements provision.Provisioner. open starts
// a target without jobs, and stops it at the end of the test.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for _, c := range []struct {
		name string
		test func(b *bench)
	}{
		{"life of a namespace", life},
		{"twice is as once", twice},
		{"limit", limited},
		{"two jobs", twoJobs},
		{"keys", keyed},
		{"errors", failures},
		{"no old data", noOldData},
		{"restart", restart},
		{"crash", crash},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &bench{T: t, Fixture: open(t)}
			b.reopen()
			t.Cleanup(func() { assert.NoError(t, b.p.Close()) })
			c.test(b)
		})
	}
}

// rounded returns a size rounded up to the target's unit.
func (b *bench) rounded(size nvmf.Bytes) nvmf.Bytes {
	unit := b.Traits().Unit
	return (size + unit - 1) / unit * unit
}

// expect checks the hosts and the rate limit of a job.
func (b *bench) expect(job string, hosts []string, rate nvmf.Bytes) {
	b.Helper()
	n, ok := b.find(job)
	require.True(b, ok, "there is no %s", job)
	assert.NotEmpty(b, n.Targets)
	n.Targets = nil
	assert.Equal(b, provision.Namespace{Job: job, State: provision.Ready, Size: b.rounded(size), Hosts: hosts, Rate: rate}, n)
}

func life(b *bench) {
	list, err := b.p.List(ctx)
	require.NoError(b, err)
	assert.Empty(b, list)
	n, err := b.p.Create(ctx, "melt", size)
	require.NoError(b, err)
	require.NotEmpty(b, n.Targets)
	b.expect("melt", []string{}, 0)
	id := n.Targets[0]
	again, err := nvmf.ParseTransportID(id.String())
	require.NoError(b, err)
	assert.Equal(b, id, again, "the address can be parsed, as for --target")
	b.refused(id, HostA)

	require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA}, nil))
	b.expect("melt", []string{HostA}, 0)
	b.holds("melt", HostA, 0)
	b.refused(id, HostB)
	b.refused(id, HostA+"x")
	v := b.connect("melt", HostA)
	require.NoError(b, b.p.Expose(ctx, "melt", []string{HostB}, nil))
	_, err = v.ReadAt(make([]byte, 4096), 0)
	require.Error(b, err, "a host that is no longer listed must be disconnected")
	_ = v.Close() // the connection was lost
	b.refused(id, HostA)
	b.fill("melt", HostB, 7)
	require.NoError(b, b.p.Expose(ctx, "melt", nil, nil))
	b.refused(id, HostB)

	if b.Traits().Limits {
		require.NoError(b, b.p.Limit(ctx, "melt", 8*nvmf.MiB))
		b.expect("melt", []string{}, 8*nvmf.MiB)
		require.NoError(b, b.p.Limit(ctx, "melt", 0))
	}
	b.expect("melt", []string{}, 0)
	require.NoError(b, b.p.Delete(ctx, "melt"))
	b.refused(id, HostB)
	assert.Empty(b, b.Leftovers(b.T))
	list, err = b.p.List(ctx)
	require.NoError(b, err)
	assert.Empty(b, list)
}

// limited measures the bandwidth of a host with and without a limit.
func limited(b *bench) {
	if !b.Traits().Paced {
		b.Skip("the hosts are fake, so limits do not slow them down")
	}
	_, err := b.p.Create(ctx, "melt", size)
	require.NoError(b, err)
	require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA}, nil))
	v := b.connect("melt", HostA)
	data := make([]byte, v.Size())
	clock := busy.Start(b)
	move := func() (took, idle time.Duration) {
		start, began := time.Now(), clock.Now()
		for range 3 {
			_, err := v.WriteAt(data, 0)
			require.NoError(b, err)
			_, err = v.ReadAt(data, 0)
			require.NoError(b, err)
		}
		return time.Since(start), clock.Now() - began
	}
	const rate = 4 * nvmf.MiB
	due := time.Duration(6*uint64(v.Size())) * time.Second / time.Duration(rate)
	_, before := move()
	require.NoError(b, b.p.Limit(ctx, "melt", rate))
	during, _ := move()
	require.NoError(b, b.p.Limit(ctx, "melt", 0))
	_, after := move()
	b.Logf("%d bytes with a limit of %s per second: expected %s, took %s; without the limit %s before and %s after", 6*v.Size(), rate, due, during, before, after)
	assert.Greater(b, during, due/2)
	assert.Less(b, before, due/2)
	assert.Less(b, after, due/2)
	require.NoError(b, v.Close())
	require.NoError(b, b.p.Delete(ctx, "melt"))
}

func twice(b *bench) {
	var first provision.Namespace
	for i := range 2 {
		n, err := b.p.Create(ctx, "melt", size)
		require.NoError(b, err)
		if i == 0 {
			first = n
		}
		assert.Equal(b, first, n)
	}
	for range 2 {
		require.NoError(b, b.p.Expose(ctx, "melt", []string{HostB, HostA, HostB}, nil))
		b.expect("melt", []string{HostA, HostB}, 0)
	}
	b.fill("melt", HostA, 3)
	_, err := b.p.Create(ctx, "melt", size)
	require.NoError(b, err)
	b.expect("melt", []string{HostA, HostB}, 0)
	b.holds("melt", HostB, 3)
	for range 2 {
		if b.Traits().Limits {
			require.NoError(b, b.p.Limit(ctx, "melt", 16*nvmf.MiB))
			b.expect("melt", []string{HostA, HostB}, 16*nvmf.MiB)
		}
	}
	for range 2 {
		require.NoError(b, b.p.Delete(ctx, "melt"))
	}
	assert.Empty(b, b.Leftovers(b.T))
}

// twoJobs checks that two hosts see only their own job, before and after a restart of
// the target.
func twoJobs(b *bench) {
	check := func() {
		for job, host := range map[string][2]string{"one": {HostA, HostB}, "two": {HostB, HostA}} {
			n, ok := b.find(job)
			require.True(b, ok)
			b.refused(n.Targets[0], host[1])
			b.holds(job, host[0], job[0])
		}
	}
	for job, host := range map[string]string{"one": HostA, "two": HostB} {
		_, err := b.p.Create(ctx, job, size)
		require.NoError(b, err)
		require.NoError(b, b.p.Expose(ctx, job, []string{host}, nil))
		b.fill(job, host, job[0])
	}
	check()
	b.Cleanup(func() { assert.NoError(b, errors.Join(b.p.Delete(ctx, "one"), b.p.Delete(ctx, "two"))) })
	if b.Traits().Volatile {
		return
	}
	b.Restart(b.T)
	b.reopen()
	if b.Traits().Forgetful {
		for job, host := range map[string]string{"one": HostA, "two": HostB} {
			_, err := b.p.Create(ctx, job, size)
			require.NoError(b, err)
			require.NoError(b, b.p.Expose(ctx, job, []string{host}, nil))
		}
	}
	check()
	require.NoError(b, b.p.Delete(ctx, "one"))
	b.holds("two", HostB, 't')
}

// keyed checks that only hosts with keys can connect, and that keys are not removed by
// mistake.
func keyed(b *bench) {
	secret := func() dhchap.Secret { return dhchap.NewSecret(dhchap.SHA256) }
	one, two, other := dhchap.Keys{Host: secret(), Controller: secret()}, dhchap.Keys{Host: secret(), Controller: secret()}, dhchap.Keys{Host: secret(), Controller: secret()}
	none := dhchap.Keys{}
	file := map[string]dhchap.Keys{HostA: one, HostB: two, HostA + "x": other}
	n, err := b.p.Create(ctx, "melt", size)
	require.NoError(b, err)
	id := n.Targets[0]
	err = b.p.Expose(ctx, "melt", []string{HostA}, file)
	if errors.Is(err, provision.ErrUnsupported) {
		require.NoError(b, b.p.Delete(ctx, "melt"))
		b.Skip(err)
	}
	require.NoError(b, err)
	check := func() {
		b.Helper()
		n, ok := b.find("melt")
		require.True(b, ok)
		assert.True(b, n.Authenticate)
		assert.Equal(b, []string{HostA}, n.Hosts)
		require.NoError(b, b.enter("melt", HostA, one).Close())
		b.stopped(id, HostA, none)
		b.stopped(id, HostA, two)
		b.stopped(id, HostB, two)
	}
	check()
	require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA}, file), "the same keys again")
	check()
	require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA}, nil))
	check()
	v := b.enter("melt", HostA, one)
	for _, err := range []error{
		b.p.Expose(ctx, "melt", []string{HostA, HostB}, nil),
		b.p.Expose(ctx, "melt", []string{HostA, HostB}, map[string]dhchap.Keys{HostA: one}),
		b.p.Expose(ctx, "melt", []string{HostB}, map[string]dhchap.Keys{}),
		b.p.Expose(ctx, "melt", []string{HostB}, nil),
	} {
		require.ErrorIs(b, err, provision.ErrInvalid)
		require.ErrorContains(b, err, HostB)
		assert.NotContains(b, err.Error(), one.Host.Reveal()[10:])
	}
	require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA, HostB}, file))
	_, err = v.ReadAt(make([]byte, 4096), 0)
	require.NoError(b, err, "a host that keeps its key stays connected")
	require.NoError(b, b.enter("melt", HostB, two).Close())
	require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA}, map[string]dhchap.Keys{HostA: other}))
	_, err = v.ReadAt(make([]byte, 4096), 0)
	require.Error(b, err, "a host with another key must be disconnected")
	_ = v.Close() // the connection was lost
	b.stopped(id, HostA, one)
	require.NoError(b, b.enter("melt", HostA, other).Close())
	require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA}, file))
	check()

	if !b.Traits().Volatile {
		b.Restart(b.T)
		b.reopen()
		if b.Traits().Forgetful {
			b.stillLocked("melt")
			require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA}, file))
		}
		check()
	}
	require.NoError(b, b.p.Expose(ctx, "melt", nil, nil))
	require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA}, nil), "a hidden namespace can be exposed without keys")
	require.NoError(b, b.connect("melt", HostA).Close())
	require.NoError(b, b.p.Delete(ctx, "melt"))
	assert.Empty(b, b.Leftovers(b.T), "keys are removed too")
}

// stillLocked checks that a job with keys is not exposed without keys after the target
// has lost its hosts, whatever calls other jobs make.
func (b *bench) stillLocked(job string) {
	b.Helper()
	for range 2 {
		n, err := b.p.Create(ctx, job, size)
		require.NoError(b, err)
		for _, host := range []string{HostA, HostB} {
			err := b.p.Expose(ctx, job, []string{host}, nil)
			require.ErrorIs(b, err, provision.ErrInvalid)
			require.ErrorContains(b, err, "--dhchap-keys")
			b.refused(n.Targets[0], host)
		}
		_, err = b.p.Create(ctx, "passing", size)
		require.NoError(b, err)
		require.NoError(b, b.p.Expose(ctx, "passing", []string{HostB}, nil))
		require.NoError(b, b.p.Delete(ctx, "passing"))
	}
}

func failures(b *bench) {
	_, err := b.p.Create(ctx, "melt", size)
	require.NoError(b, err)
	_, err = b.p.Create(ctx, "melt", 64*nvmf.MiB)
	var wrong *provision.SizeError
	require.ErrorAs(b, err, &wrong)
	assert.Equal(b, provision.SizeError{Job: "melt", Have: b.rounded(size), Want: 64 * nvmf.MiB}, *wrong)
	require.ErrorContains(b, err, b.rounded(size).String())
	require.ErrorContains(b, err, "64 MiB")

	for name, err := range map[string]error{
		"expose": b.p.Expose(ctx, "none", []string{HostA}, nil),
		"limit":  b.p.Limit(ctx, "none", 8*nvmf.MiB),
	} {
		if name == "limit" && !b.Traits().Limits {
			require.ErrorIs(b, err, provision.ErrUnsupported)
			continue
		}
		require.ErrorIs(b, err, provision.ErrNoNamespace, name)
		assert.ErrorContains(b, err, "none")
	}
	for _, job := range []string{"", "a/b", "..", "a:b"} {
		_, err := b.p.Create(ctx, job, size)
		require.ErrorIs(b, err, provision.ErrInvalid)
		require.ErrorIs(b, b.p.Expose(ctx, job, nil, nil), provision.ErrInvalid)
		require.ErrorIs(b, b.p.Delete(ctx, job), provision.ErrInvalid)
	}
	_, err = b.p.Create(ctx, "none", 1)
	require.ErrorIs(b, err, provision.ErrInvalid)
	require.ErrorIs(b, b.p.Expose(ctx, "melt", []string{"host"}, nil), provision.ErrInvalid)
	if b.Traits().Limits {
		require.ErrorIs(b, b.p.Limit(ctx, "melt", nvmf.MiB-1), provision.ErrInvalid)
		require.ErrorIs(b, b.p.Limit(ctx, "melt", nvmf.TiB+1), provision.ErrInvalid)
	} else {
		require.ErrorIs(b, b.p.Limit(ctx, "melt", nvmf.MiB), provision.ErrUnsupported)
	}
	b.expect("melt", []string{}, 0)
	_, err = b.p.Create(ctx, "large", 32*nvmf.TiB)
	require.ErrorIs(b, err, provision.ErrNoSpace)
	require.ErrorContains(b, err, "large")
	require.NoError(b, b.p.Delete(ctx, "large"))
	require.NoError(b, b.p.Delete(ctx, "melt"))
	assert.Empty(b, b.Leftovers(b.T))
}

// noOldData fills namespaces, deletes them, and checks that new namespaces of the same
// and of other sizes read as zeros. If storage is limited, the new namespaces take all
// of it.
func noOldData(b *bench) {
	make := func(job string, size nvmf.Bytes) error {
		if _, err := b.p.Create(ctx, job, size); err != nil {
			return err
		}
		require.NoError(b, b.p.Expose(ctx, job, []string{HostA}, nil))
		return nil
	}
	for round, sizes := range [][2]nvmf.Bytes{{size, size}, {size, size}, {2 * size, nvmf.MiB}, {nvmf.MiB, 3 * size}} {
		for i, job := range []string{"melt", "other"} {
			require.NoError(b, make(job, sizes[i]))
			b.holds(job, HostA, 0)
			b.fill(job, HostA, byte(0xa0+round))
		}
		require.NoError(b, b.p.Delete(ctx, "other"))
		require.NoError(b, b.p.Delete(ctx, "melt"))
	}
	if !b.Traits().Limited {
		return
	}
	// Fill all storage, first with namespaces of one size, then of another.
	for _, piece := range []nvmf.Bytes{5 * size, 3 * size} {
		var jobs []string
		for {
			job := fmt.Sprintf("piece-%d", len(jobs))
			err := make(job, piece)
			if errors.Is(err, provision.ErrNoSpace) {
				break
			}
			require.NoError(b, err)
			b.holds(job, HostA, 0)
			b.fill(job, HostA, 0xcc)
			jobs = append(jobs, job)
		}
		b.Logf("%d namespaces of %s fill the storage", len(jobs), piece)
		require.NotEmpty(b, jobs)
		for _, job := range jobs {
			require.NoError(b, b.p.Delete(ctx, job))
		}
	}
	assert.Empty(b, b.Leftovers(b.T))
}

// restart checks that repeated calls restore the state that a restarted target has
// lost.
func restart(b *bench) {
	if b.Traits().Volatile {
		b.Skip("nothing survives a restart of this target")
	}
	_, err := b.p.Create(ctx, "melt", size)
	require.NoError(b, err)
	require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA}, nil))
	b.fill("melt", HostA, 9)
	rate := nvmf.Bytes(0)
	if b.Traits().Limits {
		rate = 64 * nvmf.MiB
		require.NoError(b, b.p.Limit(ctx, "melt", rate))
	}
	b.Restart(b.T)
	b.reopen()
	n, ok := b.find("melt")
	require.True(b, ok)
	if b.Traits().Forgetful {
		assert.Equal(b, provision.Incomplete, n.State)
		_, err := b.p.Create(ctx, "melt", size)
		require.NoError(b, err)
		b.expect("melt", []string{}, 0)
		require.NoError(b, b.p.Expose(ctx, "melt", []string{HostA}, nil))
		if rate > 0 {
			require.NoError(b, b.p.Limit(ctx, "melt", rate))
		}
	}
	b.expect("melt", []string{HostA}, rate)
	b.holds("melt", HostA, 9)
	// A job can be deleted in any state.
	b.Restart(b.T)
	b.reopen()
	require.NoError(b, b.p.Delete(ctx, "melt"))
	assert.Empty(b, b.Leftovers(b.T))
}

// crash interrupts every call at every step. Then it repeats the call, or calls Delete
// or Create instead.
func crash(b *bench) {
	create := func(job string) error { _, err := b.p.Create(ctx, job, size); return err }
	expose := func(hosts ...string) func(string) error {
		return func(job string) error { return b.p.Expose(ctx, job, hosts, nil) }
	}
	keys := map[string]dhchap.Keys{HostA: {Host: dhchap.NewSecret(dhchap.SHA256)}, HostB: {Host: dhchap.NewSecret(dhchap.SHA512)}}
	lock := func(job string) error { return b.p.Expose(ctx, job, []string{HostA, HostB}, keys) }
	full := func(job string) error {
		err := errors.Join(create(job), expose(HostA)(job))
		if err == nil {
			b.fill(job, HostA, 0xee)
		}
		return err
	}
	locked := func(job string) error {
		return errors.Join(create(job), b.p.Expose(ctx, job, []string{HostA}, map[string]dhchap.Keys{HostA: keys[HostB]}))
	}
	// unlock exposes the job without keys. That is refused if some hosts already have
	// keys.
	unlock := func(job string) error {
		if err := b.p.Expose(ctx, job, []string{HostA}, nil); !errors.Is(err, provision.ErrInvalid) {
			return err
		}
		return nil
	}
	empty := func(job string) {
		require.NoError(b, b.p.Delete(ctx, job))
		_, ok := b.find(job)
		require.False(b, ok)
		require.Empty(b, b.Leftovers(b.T))
	}
	// fresh checks that the namespace was never exposed.
	fresh := func(job string) {
		b.expect(job, []string{}, 0)
		require.NoError(b, b.p.Expose(ctx, job, []string{HostB}, nil))
		b.holds(job, HostB, 0)
		n, _ := b.find(job)
		b.refused(n.Targets[0], HostA)
	}
	limit := func(job string) error { return b.p.Limit(ctx, job, 32*nvmf.MiB) }
	remove := func(job string) error { return b.p.Delete(ctx, job) }
	gone := func(job string) { _, ok := b.find(job); require.False(b, ok) }
	for _, c := range []struct {
		name                 string
		prepare, call, after func(string) error
		check                func(string)
		limits               bool
	}{
		{"create", nil, create, create, fresh, false},
		{"create-delete", nil, create, remove, gone, false},
		{"expose", full, expose(HostA, HostB), expose(HostA, HostB), func(job string) {
			b.expect(job, []string{HostA, HostB}, 0)
			b.holds(job, HostB, 0xee)
		}, false},
		{"keys", full, lock, lock, func(job string) {
			for host, k := range keys {
				require.NoError(b, b.enter(job, host, k).Close())
				n, _ := b.find(job)
				b.refused(n.Targets[0], host)
			}
		}, false},
		{"renew", locked, lock, unlock, func(job string) {
			if n, _ := b.find(job); len(n.Targets) > 0 {
				b.refused(n.Targets[0], HostA)
			}
		}, false},
		{"narrow", full, expose(HostB), expose(HostB), func(job string) {
			b.expect(job, []string{HostB}, 0)
			b.holds(job, HostB, 0xee)
		}, false},
		{"limit", full, limit, limit, func(job string) { b.expect(job, []string{HostA}, 32*nvmf.MiB) }, true},
		{"delete", full, remove, remove, gone, false},
		{"delete-create", full, remove, create, fresh, false},
	} {
		if c.limits && !b.Traits().Limits || (c.name == "keys" || c.name == "renew") && b.Traits().Keyless {
			continue
		}
		for _, executed := range []bool{false, true} {
			steps := 0
			for n := 1; ; n++ {
				job := fmt.Sprintf("%s-%d-%t", c.name, n, executed)
				if c.prepare != nil {
					require.NoError(b, c.prepare(job))
				}
				fired := b.Interrupt(n, executed)
				err := c.call(job)
				if !fired() {
					require.NoError(b, err, job)
					b.Recover(b.T)
					b.reopen()
					empty(job)
					break
				}
				steps++
				require.Error(b, err, job)
				b.Recover(b.T)
				b.reopen()
				_, err = b.p.List(ctx)
				require.NoError(b, err, job)
				require.NoError(b, c.after(job), job)
				// A Delete that was interrupted before its first step has freed nothing.
				if c.name == "delete-create" && b.untouched(job) {
					empty(job)
					continue
				}
				c.check(job)
				empty(job)
			}
			b.Logf("%s, executed %t: interrupted at each of %d steps", c.name, executed, steps)
		}
	}
}

// untouched reports whether a Delete was interrupted before its first step, so that the
// namespace has not changed.
func (b *bench) untouched(job string) bool {
	n, ok := b.find(job)
	return ok && len(n.Hosts) == 1
}
