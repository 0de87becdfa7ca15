package store

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/target"
)

// TestOverTCP runs four rank processes over NVMe/TCP with digests, on two namespaces of one target that admits only
// their host NQN. It kills one process, whose partition must then be free.
func TestOverTCP(t *testing.T) {
	t.Parallel()
	const nqn, host = "nqn.2014-08.org.example:store", "nqn.2014-08.org.nvmexpress:uuid:8d3ba4e5-6c4b-4d59-a3c5-0f6a8a0a2c11"
	var spaces []target.Namespace
	for i := 0; i < 2; i++ {
		memory, err := target.NewMemory(64*nvmf.MiB, 4*nvmf.KiB)
		require.NoError(t, err)
		spaces = append(spaces, target.Namespace{Backing: memory})
	}
	tgt, err := target.New(target.Config{Subsystems: []target.Subsystem{{NQN: nqn, Hosts: []string{host}, Namespaces: spaces}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, tgt.Close(ctx)) }()
	addr, err := tgt.Listen("127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(addr.String())
	require.NoError(t, err)

	cfg := config.Default()
	cfg.Timeout = hang
	require.NoError(t, cfg.Set("header-digest", "on"))
	require.NoError(t, cfg.Set("data-digest", "on"))
	for _, ns := range []string{"1", "2"} {
		require.NoError(t, cfg.Set("target", "trtype:TCP traddr:127.0.0.1 trsvcid:"+port+" subnqn:"+nqn+" ns:"+ns))
	}
	_, err = openWaiting(cfg, Proc{Rank: 0, Size: 4}, Options{})
	require.ErrorIs(t, err, nvmf.ErrHostRefused)
	assert.Contains(t, err.Error(), cfg.Targets[0].String())
	require.NoError(t, cfg.Set("hostnqn", host))

	var ranks []*rankProcess
	for r := 3; r >= 0; r-- {
		ranks = append(ranks, startRank(t, cfg, r, 4))
	}
	for _, p := range ranks {
		require.Contains(t, p.line(), "generation")
	}
	require.NoError(t, ranks[3].Process.Kill())
	_ = ranks[3].Wait()
	p, err := openWaiting(cfg, Proc{Rank: 0, Size: 4}, Options{})
	require.NoError(t, err, "the partition of the killed process is free")
	f, err := p.FS.Open(microfs.RootIno, "f", os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, p.Close())

	gone := cfg.Targets[0]
	gone.SubNQN += "x"
	other := *cfg
	other.Targets = []nvmf.TransportID{gone}
	_, err = Open(ctx, &other, Proc{Rank: 0, Size: 4}, Options{})
	require.ErrorIs(t, err, nvmf.ErrNoSubsystem)
	assert.NotContains(t, err.Error(), "\n")
}

// A cutter forwards TCP connections to a target. It can close all open ones.
type cutter struct {
	net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
	left  atomic.Int64 // bytes from the target until the connections are closed; 0 or less: no limit
}

func newCutter(t *testing.T, to string) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cutter{Listener: l, to: to}
	t.Cleanup(func() { _ = l.Close(); c.cut() })
	go func() {
		for {
			here, err := l.Accept()
			if err != nil {
				return
			}
			c.pass(here)
		}
	}()
	return c
}

func (c *cutter) pass(here net.Conn) {
	there, err := net.Dial("tcp", c.to)
	if err != nil {
		_ = here.Close()
		return
	}
	c.mu.Lock()
	c.conns = append(c.conns, here, there)
	c.mu.Unlock()
	go func() { _, _ = io.Copy(there, here); _ = there.Close() }()
	go func() { _, _ = io.Copy(here, io.TeeReader(there, c)); _ = here.Close() }()
}

// Write counts the bytes from the target, and closes the connections after the last one that left allows.
func (c *cutter) Write(b []byte) (int, error) {
	if left := c.left.Add(-int64(len(b))); left <= 0 && left+int64(len(b)) > 0 {
		c.cut()
	}
	return len(b), nil
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// TestViewsWaitOnce checks that after a time-out of a target the next calls fail at once with the same error, for any
// rank. After as long again as the time-out, the target must be tried again.
func TestViewsWaitOnce(t *testing.T) {
	cfg, _ := newServed(t, 64*nvmf.MiB)
	p, err := openWaiting(cfg, Proc{Rank: 0, Size: 2}, Options{})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	away := *cfg
	away.Timeout = 100 * time.Millisecond
	id := cfg.Targets[0]
	id.Service = "1" // nobody listens there
	away.Targets = []nvmf.TransportID{id}
	v := NewViews(&away, nil)
	defer v.Close()
	_, first := v.Rank(ctx, 0, time.Now())
	require.True(t, Unavailable(first), "%v", first)
	v.silent[0] = silence{v.silent[0].err, time.Now().Add(hang)} // extended, since a slow machine may need longer than 100 ms
	_, again := v.Rank(ctx, 1, time.Now())
	assert.Same(t, first, again)
	v.silent[0] = silence{first, time.Now()}
	v.cfg = cfg // the target can be reached again
	_, err = v.Rank(ctx, 0, time.Now())
	assert.NoError(t, err)
}

// TestViewsConnectAgain checks that readers of partitions connect again after each lost connection.
func TestViewsConnectAgain(t *testing.T) {
	const nqn = "nqn.2014-08.org.example:store"
	memory, err := target.NewMemory(64*nvmf.MiB, 4*nvmf.KiB)
	require.NoError(t, err)
	tgt, err := target.New(target.Config{Subsystems: []target.Subsystem{{NQN: nqn, Namespaces: []target.Namespace{{Backing: memory}}}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, tgt.Close(ctx)) }()
	addr, err := tgt.Listen("127.0.0.1:0")
	require.NoError(t, err)
	through := newCutter(t, addr.String())
	over := func(addr net.Addr) *config.Config {
		cfg := config.Default()
		cfg.Timeout = hang
		_, port, err := net.SplitHostPort(addr.String())
		require.NoError(t, err)
		require.NoError(t, cfg.Set("target", "trtype:TCP traddr:127.0.0.1 trsvcid:"+port+" subnqn:"+nqn+" ns:1"))
		return cfg
	}
	p, err := openWaiting(over(addr), Proc{Rank: 0, Size: 2}, Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	v := NewViews(over(through.Addr()), nil)
	defer v.Close()
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, writeFile(p.FS, name, scriptFile))
		fs, err := v.Rank(ctx, 0, time.Now())
		require.NoError(t, err)
		assert.Equal(t, scriptFile, contentOf(t, fs, name))
		through.cut()
		_, err = v.Refresh(ctx)
		require.NoError(t, err)
		through.cut()
	}
	for n := int64(1); through.left.Load() <= 0; n *= 2 { // until the limit is not reached
		name := fmt.Sprint(n)
		require.NoError(t, writeFile(p.FS, name, scriptFile))
		through.left.Store(n)
		fs, err := v.Rank(ctx, 0, time.Now())
		require.NoError(t, err, "cut after %d bytes", n)
		assert.Equal(t, scriptFile, contentOf(t, fs, name))
	}
}
