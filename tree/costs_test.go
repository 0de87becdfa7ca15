package tree

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/tree/wire"
)

// A requestLog records the requests of a process, in order.
type requestLog struct {
	*countedConn
	heard []string
}

func (l *requestLog) Write(b []byte) (int, error) {
	l.heard = append(l.heard, wire.Op(binary.LittleEndian.Uint16(b[6:])).String())
	return l.countedConn.Write(b)
}

// barriers returns how often a device had to make data durable: flushes, and writes with FUA.
func barriers(dev *blocktest.Faulty) (n int) {
	for _, e := range dev.Recorded().Events {
		if !e.Completed && (e.Opcode == nvmf.Flush || e.FUA) {
			n++
		}
	}
	dev.Record()
	return n
}

// TestCosts counts, for each call, the requests to the index, and the barriers of the rank's partition and the
// index's. The table is in docs/dev/tree.md.
func TestCosts(t *testing.T) {
	r := newRig(t, 2)
	r.cache = true
	r.stop()
	r.start()
	a, b := r.join(0), r.join(1)
	l := &requestLog{countedConn: a.counted}
	a.client.conn = wire.NewConn(l, testTimeout, a.client.released)
	a.write("/own", text('a', 8000))
	b.write("/others", text('b', 8000))
	a.read("/others")
	edit := func(path string, sync bool) {
		f := a.open(path, unix.O_RDWR)
		put(t, f, 100, "hello")
		if sync {
			require.NoError(t, f.Sync())
		}
		require.NoError(t, f.Close())
	}
	replace := func(sync bool) {
		f := a.open("/tmp", unix.O_CREAT|unix.O_WRONLY)
		put(t, f, 0, text('t', 8000))
		if sync {
			require.NoError(t, f.Sync())
		}
		require.NoError(t, f.Close())
		require.NoError(t, a.Rename(root, "/tmp", root, "/own", 0))
	}
	shared := a.open("/shared", unix.O_CREAT|unix.O_RDWR)
	put(t, shared, 0, text('s', 8000))
	barrier := func() {
		require.NoError(t, a.Publish())
		require.NoError(t, a.Refresh())
	}
	barrier()
	for _, c := range []struct {
		what        string
		do          func()
		rank, index int
		requests    string
	}{
		{"barrier", barrier, 0, 0, "Map"},
		{"write, barrier", func() {
			put(t, shared, 100, "hello")
			barrier()
		}, 2, 1, "Publish Map"},
		{"create, write, close", func() { a.write("/new", text('c', 4096)) }, 2, 1, "Open Close"},
		{"create, close", func() { require.NoError(t, a.open("/empty", unix.O_CREAT|unix.O_WRONLY).Close()) }, 0, 1, "Open Close"},
		{"read an own file", func() { a.read("/own") }, 0, 0, "Open Leave"},
		{"read another rank's file", func() { a.read("/others") }, 0, 0, "Open Leave"},
		{"read under a lock", func() {
			f := a.open("/own", unix.O_RDONLY)
			require.NoError(t, f.(vfs.Locker).Lock(false, 0, 1, []vfs.Held{{Start: 0, End: 1}}))
			require.NoError(t, f.Close())
		}, 0, 0, "Open Lock Map Close"},
		{"open for writing, close", func() { require.NoError(t, a.open("/own", unix.O_WRONLY).Close()) }, 0, 0, "Open Close"},
		{"rewrite with O_TRUNC", func() { a.write("/own", text('d', 8000)) }, 2, 1, "Open Close"},
		{"rewrite in place", func() { edit("/own", false) }, 2, 2, "Open Publish Close"},
		{"rewrite another rank's file in place", func() { edit("/others", false) }, 2, 2, "Open Publish Close"},
		{"rewrite in place, fsync, close", func() { edit("/own", true) }, 3, 3, "Open Publish Publish Close"},
		{"ftruncate, close", func() {
			f := a.open("/own", unix.O_RDWR)
			require.NoError(t, f.Truncate(4000))
			require.NoError(t, f.Close())
		}, 0, 1, "Open Truncate Close"},
		{"write a new file, close, rename it over the old one", func() { replace(false) }, 2, 1, "Open Close Rename"},
		{"write a new file, fsync, close, rename it over the old one", func() { replace(true) }, 3, 2, "Open Publish Close Rename"},
		{"mkdir", func() { require.NoError(t, a.Mkdir(root, "/d", 0o755)) }, 0, 0, "Mkdir"},
		{"stat", func() {
			_, err := a.Stat(root, "/own", true)
			require.NoError(t, err)
		}, 0, 0, "Stat"},
		{"unlink", func() { require.NoError(t, a.Unlink(root, "/own")) }, 0, 0, "Unlink"},
	} {
		l.heard = nil
		a.dev.Record()
		r.homeDev.Record()
		c.do()
		assert.Equal(t, c.requests, strings.Join(l.heard, " "), c.what)
		assert.Equal(t, c.rank, barriers(a.dev), "the rank's partition: %s", c.what)
		assert.Equal(t, c.index, barriers(r.homeDev), "the index's partition: %s", c.what)
	}
}
