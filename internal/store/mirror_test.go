package store

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/mirror"
	"nvmecr/nvmf/target"
)

// TestPartners checks that each target is mirrored on one other target, which is in another failure domain.
func TestPartners(t *testing.T) {
	for _, test := range []struct {
		addresses string
		want      []int // nil: refused
	}{
		{"a b", []int{1, 0}},
		{"a a", []int{1, 0}},
		{"a b c", []int{1, 2, 0}},
		{"a a b b", []int{2, 3, 0, 1}},
		{"a b a b", []int{1, 2, 3, 0}},
		{"a a b c", []int{2, 3, 0, 1}},
		{"a a b", nil},
		{"a", nil},
		{"", nil},
	} {
		var targets []nvmf.TransportID
		for i, a := range strings.Fields(test.addresses) {
			targets = append(targets, nvmf.TransportID{Address: a, NSID: uint32(i)})
		}
		got, err := partners(targets)
		if test.want == nil {
			assert.Error(t, err, test.addresses)
			continue
		}
		require.NoError(t, err, test.addresses)
		all, domains := slices.Clone(got), Domains(targets)
		slices.Sort(all)
		for i, p := range got {
			assert.Equal(t, i, all[i], test.addresses)
			assert.NotEqual(t, domains[i], domains[p], test.addresses)
		}
		if test.want != nil && test.addresses != "a b a b" {
			assert.Equal(t, test.want, got, test.addresses)
		}
	}
}

// served is a target that a test can stop.
type served struct {
	t    *testing.T
	id   nvmf.TransportID
	stop func()
}

// addresses counts the addresses of serve.
var addresses atomic.Uint32

// serve starts a target with one namespace at an address of its own: while the target is stopped, no other one takes its port.
func serve(t *testing.T, number int, memory target.Backing) *served {
	n := addresses.Add(1)
	return serveAt(t, fmt.Sprintf("127.0.%d.%d:0", 4+n/250, 1+n%250), number, memory)
}

// serveAt starts a target with one namespace at an address.
func serveAt(t *testing.T, address string, number int, memory target.Backing) *served {
	nqn := fmt.Sprintf("nqn.2014-08.org.example:mirror%d", number)
	tgt, err := target.New(target.Config{Subsystems: []target.Subsystem{{NQN: nqn, Namespaces: []target.Namespace{{Backing: memory}}}}})
	require.NoError(t, err)
	addr, err := tgt.Listen(address)
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(addr.String())
	require.NoError(t, err)
	cfg := config.Default()
	require.NoError(t, cfg.Set("target", "trtype:TCP traddr:"+host+" trsvcid:"+port+" subnqn:"+nqn+" ns:1"))
	s := &served{t: t, id: cfg.Targets[0]}
	s.stop = sync.OnceFunc(func() { assert.NoError(t, tgt.Close(ctx)) })
	t.Cleanup(s.stop)
	return s
}

func blankMemory(t *testing.T) target.Backing {
	memory, err := target.NewMemory(64*nvmf.MiB, 4*nvmf.KiB)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, memory.Close()) })
	return outlasting{memory}
}

// outlasting keeps the content of a namespace when its target is closed.
type outlasting struct{ target.Backing }

func (outlasting) Close() error { return nil }

// mirrored is a run of a mirrored store, with its ranks and messages.
type mirrored struct {
	t     *testing.T
	cfg   *config.Config
	lease *Lease
	ranks []*Partition
	said  strings.Builder
	mu    sync.Mutex
}

func (m *mirrored) say(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(&m.said, format+"\n", args...)
}

func startMirrored(t *testing.T, targets ...*served) *mirrored {
	m := &mirrored{t: t, cfg: mirrorConfig(t, targets...)}
	var err error
	m.lease, err = takeLease(ctx, m.cfg, m.say, quick)
	require.NoError(t, err)
	for r := range 2 {
		p, err := Open(ctx, m.cfg, Proc{Rank: r, Size: 2}, Options{})
		require.NoError(t, err)
		m.ranks = append(m.ranks, p)
	}
	return m
}

func mirrorConfig(t *testing.T, targets ...*served) *config.Config {
	cfg := config.Default()
	cfg.View, cfg.CopiesSync, cfg.Timeout = config.ViewRank, true, 8*time.Second
	for _, s := range targets {
		cfg.Targets = append(cfg.Targets, s.id)
	}
	var err error
	cfg.Run, err = NewRun(cfg.Run)
	require.NoError(t, err)
	return cfg
}

func (m *mirrored) write(name string) {
	for r, p := range m.ranks {
		require.NoError(m.t, writeFile(p.FS, name, mirroredContent(r, name)))
	}
}

func (m *mirrored) check(names ...string) {
	for r, p := range m.ranks {
		for _, name := range names {
			require.True(m.t, bytes.Equal(mirroredContent(r, name), contentOf(m.t, p.FS, name)), "rank %d: %s", r, name)
		}
	}
}

func mirroredContent(r int, name string) []byte { return bytes.Repeat([]byte(name), 20000+r) }

func (m *mirrored) end() {
	for _, p := range m.ranks {
		require.NoError(m.t, p.Close())
	}
	m.lease.End()
}

// TestMirror loses one target during a run, which must continue. It runs without the target, brings the target back,
// and then replaces each target by an empty one. The files must remain in all cases.
func TestMirror(t *testing.T) {
	for lost := range 2 {
		t.Run(fmt.Sprint("target ", lost), func(t *testing.T) {
			t.Parallel()
			left := 1 - lost
			memory := []target.Backing{blankMemory(t), blankMemory(t)}
			targets := []*served{serve(t, 0, memory[0]), serve(t, 1, memory[1])}

			run := startMirrored(t, targets...)
			run.write("before")
			require.Empty(t, degradedOf(run.lease))
			reader, err := Open(ctx, run.cfg, Proc{Rank: lost, Size: 2}, Options{ReadOnly: true})
			require.NoError(t, err)
			targets[lost].stop()
			run.write("after")
			run.check("before", "after")
			require.False(t, reader.Current())
			require.NoError(t, reader.Close())
			require.Eventually(t, func() bool { return len(degradedOf(run.lease)) == 1 }, hang, 10*time.Millisecond)
			assert.Equal(t, []nvmf.TransportID{targets[lost].id}, degradedOf(run.lease))
			_, since := run.lease.Degraded()
			run.end()
			require.Equal(t, 1, strings.Count(run.said.String(), "is lost"), run.said.String())

			// A run starts without the lost target.
			run = startMirrored(t, targets...)
			run.check("before", "after")
			run.write("without")
			run.end()
			degraded, recorded, err := DegradedMirrors(ctx, run.cfg)
			require.NoError(t, err)
			assert.Equal(t, []nvmf.TransportID{targets[lost].id}, degraded)
			assert.True(t, since.Equal(recorded), "since %v, and recorded is %v", since, recorded)
			require.Contains(t, run.said.String(), "goes on without it")

			// The target is back with outdated content, and the run copies the missing data to it.
			targets[lost] = serve(t, lost, memory[lost])
			run = startMirrored(t, targets...)
			for _, s := range []int{lost, left} { // each target is in two mirrors
				assert.Equal(t, 1, strings.Count(run.said.String(), fmt.Sprintf("the mirror of target %s on target %s is complete again: ", targets[s].id, targets[1-s].id)), run.said.String())
			}
			run.check("before", "after", "without")
			run.write("again")
			run.end()

			// Each target in turn is lost with its content and replaced by an empty one.
			for _, s := range []int{lost, left} {
				targets[s].stop()
				_, err := takeLease(ctx, mirrorConfig(t, targets...), run.say, quick)
				require.ErrorIs(t, err, mirror.ErrAway)
				targets[s] = serve(t, s, blankMemory(t))
				run = startMirrored(t, targets...)
				run.check("before", "after", "without", "again")
				run.end()
			}
			degraded, recorded, err = DegradedMirrors(ctx, run.cfg)
			require.NoError(t, err)
			require.Empty(t, degraded)
			require.Zero(t, recorded)
			n, err := Release(ctx, run.cfg)
			require.NoError(t, err)
			require.Equal(t, 2, n)
		})
	}
}

// TestMirrorOutdated checks that a lost target is marked as outdated when it can be reached again during the run. If
// the other target is then replaced by an empty one, the next run must be refused.
func TestMirrorOutdated(t *testing.T) {
	t.Parallel()
	memory := blankMemory(t)
	targets := []*served{serve(t, 0, memory), serve(t, 1, blankMemory(t))}
	run := startMirrored(t, targets...)
	run.write("before")
	targets[0].stop()
	run.write("after")
	targets[0] = serveAt(t, net.JoinHostPort(targets[0].id.Address, targets[0].id.Service), 0, memory)
	require.Eventually(t, func() bool {
		run.mu.Lock()
		defer run.mu.Unlock()
		return strings.Contains(run.said.String(), "is back")
	}, hang, 10*time.Millisecond)
	run.check("before", "after")
	run.end()

	targets[1].stop()
	targets[1] = serve(t, 1, blankMemory(t))
	_, err := takeLease(ctx, mirrorConfig(t, targets...), run.say, quick)
	require.ErrorIs(t, err, mirror.ErrStale)

	cfg := mirrorConfig(t, targets...)
	cfg.Fresh, cfg.Takeover = true, true // the outdated target has the record of the first run, whose process lives
	lease, err := takeLease(ctx, cfg, run.say, quick)
	require.NoError(t, err)
	require.NoError(t, Reset(ctx, cfg))
	lease.End()
	run = startMirrored(t, targets...)
	run.write("anew")
	run.end()
	require.Empty(t, degradedOf(run.lease))
}

func degradedOf(l *Lease) []nvmf.TransportID {
	lost, _ := l.Degraded()
	return lost
}

// TestMirrorFixed checks that a mirrored store cannot be opened without mirrors, and a store without mirrors cannot
// be opened as a mirrored one.
func TestMirrorFixed(t *testing.T) {
	t.Parallel()
	targets := []*served{serve(t, 0, blankMemory(t)), serve(t, 1, blankMemory(t))}
	startMirrored(t, targets...).end()
	cfg := mirrorConfig(t, targets...)
	cfg.CopiesSync = false
	_, err := takeLease(ctx, cfg, t.Logf, quick)
	require.ErrorIs(t, err, parttable.ErrOtherMirror)

	cfg.Fresh = true
	require.NoError(t, Reset(ctx, cfg))
	cfg.Fresh = false
	p, err := Open(ctx, cfg, Proc{Rank: 0, Size: 2}, Options{})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	_, err = takeLease(ctx, mirrorConfig(t, targets...), t.Logf, quick)
	require.ErrorIs(t, err, parttable.ErrOtherMirror)
}

// TestMirrorForeign checks that a namespace in the place of a lost target is refused if it has other data.
func TestMirrorForeign(t *testing.T) {
	t.Parallel()
	targets := []*served{serve(t, 0, blankMemory(t)), serve(t, 1, blankMemory(t))}
	startMirrored(t, targets...).end()
	other := blankMemory(t)
	foreign := bytes.Repeat([]byte{1}, 4096)
	require.NoError(t, other.WriteAt(foreign, 0))
	targets[1] = serve(t, 1, other)
	_, err := takeLease(ctx, mirrorConfig(t, targets...), t.Logf, quick)
	require.ErrorIs(t, err, parttable.ErrForeign)
}

// TestMirrorOlderImage replaces a target by its image of some runs ago. The target is outdated, even if the other one was never used alone.
func TestMirrorOlderImage(t *testing.T) {
	for s := range 2 {
		t.Run(fmt.Sprint("target ", s), func(t *testing.T) {
			t.Parallel()
			memory := []target.Backing{blankMemory(t), blankMemory(t)}
			targets := []*served{serve(t, 0, memory[0]), serve(t, 1, memory[1])}
			run := startMirrored(t, targets...)
			run.write("before")
			run.end()
			older := make([]byte, 64*nvmf.MiB)
			require.NoError(t, memory[s].ReadAt(older, 0))
			run = startMirrored(t, targets...)
			run.write("after")
			run.end()

			require.NoError(t, memory[s].WriteAt(older, 0))
			run = startMirrored(t, targets...)
			run.check("before", "after")
			run.end()
			require.Equal(t, 2, strings.Count(run.said.String(), "is complete again"), run.said.String())

			targets[1-s].stop()
			targets[1-s] = serve(t, 1-s, blankMemory(t))
			run = startMirrored(t, targets...)
			run.check("before", "after")
			run.end()
		})
	}
}

// TestMirrorElsewhere loses a target in another process of the job only. The run must report the loss, and must
// record on the target that it is outdated.
func TestMirrorElsewhere(t *testing.T) {
	t.Parallel()
	targets := []*served{serve(t, 0, blankMemory(t)), serve(t, 1, blankMemory(t))}
	run := startMirrored(t, targets...)
	run.write("before")
	var elsewhere [2]*blocktest.Faulty
	var dial [2]mirror.Dial
	for s := range dial {
		dev, err := connectTo(ctx, run.cfg, targets[s].id, false)
		require.NoError(t, err)
		elsewhere[s], err = blocktest.NewFaulty(dev)
		require.NoError(t, err)
		dial[s] = func(context.Context) (nvmf.Device, error) { return elsewhere[s], nil }
	}
	dev, err := mirror.Open(ctx, dial, mirror.Options{Patience: time.Millisecond})
	require.NoError(t, err)
	require.NoError(t, elsewhere[0].Crash(1))
	require.NoError(t, dev.Level(ctx, 0, 4*nvmf.KiB))
	_, alone := dev.Alone()
	require.True(t, alone)
	require.NoError(t, dev.Close())

	require.Eventually(t, func() bool { return len(degradedOf(run.lease)) == 1 }, hang, 10*time.Millisecond)
	assert.Equal(t, []nvmf.TransportID{targets[0].id}, degradedOf(run.lease))
	require.Eventually(t, func() bool {
		run.mu.Lock()
		defer run.mu.Unlock()
		return strings.Contains(run.said.String(), "is back")
	}, hang, 10*time.Millisecond)
	run.write("after")
	run.check("before", "after")
	run.end()

	targets[1].stop()
	targets[1] = serve(t, 1, blankMemory(t))
	_, err = takeLease(ctx, mirrorConfig(t, targets...), run.say, quick)
	require.ErrorIs(t, err, mirror.ErrStale)
}
