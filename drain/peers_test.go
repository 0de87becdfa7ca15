package drain

import (
	"bytes"
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A closing is the source of a peer.
type closing struct{ *memory }

func (closing) Close() error { return nil }

// join runs Join in another process until leave is called.
func join(t *testing.T, dir, run string, m *memory, o Options) (leave func()) {
	t.Helper()
	l := open(t, dir)
	cloning(l, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			_ = l.Join(ctx, run, o, func(context.Context, bool) (ClosingSource, error) { return closing{m}, nil })
		}
	})
	synctest.Wait() // it has looked for calls
	return func() { cancel(); ended.Wait() }
}

// fewFiles returns a set that takes few changes to write.
func fewFiles(t *testing.T) map[string][]byte {
	return map[string][]byte{"/melt.400.0": random(t, 10), "/d/melt.400.1": random(t, 20), "/melt.400.2": random(t, 30), "/melt.400.3": nil, "/melt.400.4": random(t, 40)}
}

// requireNothingElse checks that no partial sets are left.
func requireNothingElse(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{partialDir, peerDir} {
		rest, err := filepath.Glob(filepath.Join(dir, "melt", name, "*"))
		require.NoError(t, err)
		require.Empty(t, rest)
	}
}

// TestPeers checks that the peers of a run, and no others, copy shares of a set, and that each byte is read once.
func TestPeers(t *testing.T) {
	for _, compress := range []Compression{Plain, LZ4} {
		t.Run(string(compress), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				data := shared(t)
				s, m := checkpointOf("400", data)
				s.Compress = compress
				dir := t.TempDir()
				stranger := join(t, dir, "before", m, Options{step: func(string) error { return errDead }})
				for range 2 {
					defer join(t, dir, "run", m, Options{})()
				}
				put, err := open(t, dir).Put(t.Context(), s, m, Options{Peers: "run"})
				require.NoError(t, err)
				assert.Equal(t, 3, put.Hosts)
				assert.Equal(t, s.Size(), m.read)
				require.NoError(t, open(t, dir).Verify(t.Context(), put, Options{}))
				if compress == Plain {
					requireSet(t, open(t, dir), s, data)
				}
				stranger()
			})
		})
	}
}

// TestPeersIncremental checks that each peer shares the data of its part with the previous set.
func TestPeersIncremental(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		units := random(t, 3*unitSize)
		var put *Set
		for i, step := range []string{"400", "600"} {
			s, m := checkpointOf(step, map[string][]byte{"/melt." + step + ".0": units, "/melt." + step + ".1": changed(units, 0)})
			s.Ended = noon.Add(time.Duration(i) * time.Hour)
			leave := join(t, dir, "run", m, incremental)
			l := open(t, dir)
			cloning(l, nil)
			var err error
			put, err = l.Put(t.Context(), s, m, Options{Incremental: true, Peers: "run"})
			require.NoError(t, err)
			require.Equal(t, 2, put.Hosts)
			require.NoError(t, l.Verify(t.Context(), put, Options{}))
			leave()
		}
		assert.Equal(t, int64(2*3*unitSize), put.Shared)
	})
}

// TestPeersLimit checks that the limit applies to all copying processes together.
func TestPeersLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := map[string][]byte{"/melt.400.0": random(t, 32*blockSize), "/melt.400.1": random(t, 32*blockSize)}
		s, m := checkpointOf("400", data)
		dir := t.TempDir()
		defer join(t, dir, "run", m, Options{})()
		begin := time.Now()
		put, err := open(t, dir).Put(t.Context(), s, m, Options{Peers: "run", Limit: blockSize})
		require.NoError(t, err)
		require.Equal(t, 2, put.Hosts)
		took := time.Since(begin) - 2*peerLook
		assert.Greater(t, took, 120*time.Second, "64 s to copy, and as long to verify")
		assert.Less(t, took, 140*time.Second)
	})
}

// A countingDir counts how often the directory of partial sets is listed.
type countingDir struct {
	directory
	looks *atomic.Int64
}

func (d countingDir) Sub(name string) (directory, error) {
	if name == partialDir {
		d.looks.Add(1)
	}
	return d.directory.Sub(name)
}

// TestPeerRests checks that a peer looks less often if nothing has been copied for long, and yet starts a set in
// time; and that it looks every two seconds while sets are written.
func TestPeerRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, looks := t.TempDir(), &atomic.Int64{}
		s, m := checkpointOf("400", fewFiles(t))
		peer := open(t, dir)
		peer.root = countingDir{peer.root, looks}
		ctx, leave := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() {
			_ = peer.Join(ctx, "run", Options{}, func(context.Context, bool) (ClosingSource, error) { return closing{m}, nil })
		})
		requireOften := func() {
			before := looks.Load()
			time.Sleep(30 * time.Second)
			assert.InDelta(t, 15, looks.Load()-before, 1)
		}
		requireOften()
		time.Sleep(30 * time.Minute)
		assert.InDelta(t, 209, looks.Load(), 3, "every ten seconds after some minutes")
		begin := time.Now()
		put, err := open(t, dir).Put(t.Context(), s, m, Options{Peers: "run"})
		require.NoError(t, err)
		assert.Equal(t, 2, put.Hosts)
		assert.Less(t, time.Since(begin), peerPause+2*peerLook)
		requireOften()
		leave()
		ended.Wait()
	})
}

// TestPeerStopped stops a peer before each of its changes. The calling process copies the share of the peer. When the
// peer continues, and reads other bytes, the complete set must not change.
func TestPeerStopped(t *testing.T) {
	for at, stopped := 0, true; stopped; at++ {
		synctest.Test(t, func(t *testing.T) {
			data := fewFiles(t)
			s, m := checkpointOf("400", data)
			_, theirs := checkpointOf("400", data)
			dir := t.TempDir()
			var n atomic.Int64
			goesOn := make(chan struct{})
			leave := join(t, dir, "run", theirs, Options{Workers: 1, step: func(string) error {
				if n := n.Add(1); n > int64(at) && n < 100 {
					<-goesOn
				}
				return nil
			}})
			begin := time.Now()
			_, err := open(t, dir).Put(t.Context(), s, m, Options{Workers: 1, Peers: "run"})
			require.NoError(t, err)
			stopped = n.Load() > int64(at)
			assert.LessOrEqual(t, time.Since(begin), peerPatience+2*peerLook)
			requireSet(t, open(t, dir), s, data)
			theirs.spoil()
			close(goesOn)
			time.Sleep(time.Minute)
			requireSet(t, open(t, dir), s, data)
			leave()
			requireNothingElse(t, dir)
			if !stopped {
				assert.Greater(t, at, 6)
			}
		})
	}
}

// TestCallStopped stops the calling process before each of its changes. Another process copies the set. When the
// first one continues, and reads other bytes, the complete set must not change.
func TestCallStopped(t *testing.T) {
	for at, stopped := 0, true; stopped; at++ {
		synctest.Test(t, func(t *testing.T) {
			data := fewFiles(t)
			s, m := checkpointOf("400", data)
			dir := t.TempDir()
			defer join(t, dir, "run", m, Options{})()
			var n atomic.Int64
			goesOn, first := make(chan struct{}), open(t, dir)
			var late sync.WaitGroup
			_, theirs := checkpointOf("400", data)
			late.Go(func() {
				_, _ = first.Put(t.Context(), s, theirs, Options{Workers: 1, Peers: "run", step: func(string) error {
					if n.Add(1) > int64(at) {
						<-goesOn
					}
					return nil
				}})
			})
			time.Sleep(peerPatience)
			stopped = n.Load() > int64(at)
			_, err := open(t, dir).Put(t.Context(), s, m, Options{Workers: 1})
			require.NoError(t, err)
			requireSet(t, open(t, dir), s, data)
			theirs.spoil()
			close(goesOn)
			late.Wait()
			requireSet(t, open(t, dir), s, data)
		})
	}
}

// spoil changes all bytes but not the times of modification.
func (m *memory) spoil() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.files {
		c.data = bytes.Repeat([]byte{1}, len(c.data))
	}
}

// TestPeerFails checks that the calling process at once copies data that a peer cannot read.
func TestPeerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := fewFiles(t)
		s, m := checkpointOf("400", data)
		broken := &memory{files: map[string]*content{}}
		for name, c := range m.files {
			broken.files[name] = &content{data: c.data, modified: c.modified, broken: syscall.EIO}
		}
		dir := t.TempDir()
		defer join(t, dir, "run", broken, Options{})()
		begin := time.Now()
		put, err := open(t, dir).Put(t.Context(), s, m, Options{Peers: "run"})
		require.NoError(t, err)
		assert.Equal(t, 1, put.Hosts)
		assert.Less(t, time.Since(begin), 2*peerLook)
		requireSet(t, open(t, dir), s, data)
	})
}

// TestCallCutShort kills the calling process before each of its changes, while the peer continues. The set must count
// as a whole or not at all, and the next Put must complete it, with the peer or without.
func TestCallCutShort(t *testing.T) {
	for at, killed := 0, true; killed; at++ {
		for _, run := range []string{"", "run"} {
			synctest.Test(t, func(t *testing.T) {
				data := fewFiles(t)
				s, m := checkpointOf("400", data)
				dir := t.TempDir()
				leave := join(t, dir, "run", m, Options{})
				n := 0
				killed = false
				_, err := open(t, dir).Put(t.Context(), s, m, Options{Workers: 1, Peers: "run", step: func(string) error {
					if n++; n > at {
						killed = true
						return errDead
					}
					return nil
				}})
				if killed {
					require.ErrorIs(t, err, errDead)
					sets, err := open(t, dir).Sets()
					require.NoError(t, err)
					require.Empty(t, sets)
				} else {
					assert.Greater(t, at, 15)
				}
				_, err = open(t, dir).Put(t.Context(), s, m, Options{Workers: 1, Peers: run})
				require.NoError(t, err, "after %d changes", at)
				requireSet(t, open(t, dir), s, data)
				leave()
				requireNothingElse(t, dir)
			})
		}
	}
}

// TestGather checks that complete files of an interrupted Put with peers are used, and others are not.
func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := map[string][]byte{"/melt.400.0": append(random(t, SegmentSize), 1), "/melt.400.1": random(t, 20), "/melt.400.2": random(t, 40)}
		s, m := checkpointOf("400", data) // places 0 and 2 are in the share of this process
		dir := t.TempDir()
		leave := join(t, dir, "run", m, Options{step: func(string) error { return errDead }})
		journaled := 0
		_, err := open(t, dir).Put(t.Context(), s, m, Options{Workers: 1, Peers: "run", step: func(what string) error {
			if what == "journal" {
				journaled++
			}
			if what == "aside" {
				return errDead
			}
			return nil
		}})
		require.ErrorIs(t, err, errDead)
		leave()
		calls, err := filepath.Glob(filepath.Join(dir, "melt", partialDir, "melt.400+*"))
		require.NoError(t, err)
		require.Len(t, calls, 1)
		read := m.read
		require.Equal(t, int64(SegmentSize+20), read)
		_, err = open(t, dir).Put(t.Context(), s, m, Options{})
		require.NoError(t, err)
		assert.Equal(t, int64(SegmentSize+1+40), m.read-read)
		requireSet(t, open(t, dir), s, data)
		requireNothingElse(t, dir)
	})
}
