package index

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
	"nvmecr/tree/wire"
)

// testTimeout is how long a test waits for an event that has to happen.
const testTimeout = 2 * time.Minute

var testRun = uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff")

// A rig is an index and partitions in memory.
type rig struct {
	t      testing.TB
	dev    nvmf.Device
	host   *blocktest.Faulty // the device as the present index has it
	cache  bool              // that device has a volatile write cache
	fs     *microfs.FS
	x      *Index
	opts   Options
	places map[uint32]*microfs.FS // partitions of ranks, mounted for writing
	mu     sync.Mutex
	lines  []string // logged messages
}

func partition(t testing.TB, ranges bool) nvmf.Device {
	dev, err := memdev.New(32*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	require.NoError(t, microfs.Format(context.Background(), dev, whole(dev), microfs.FormatOptions{Ranges: ranges, Hugeblock: 4 * nvmf.KiB}))
	return dev
}

func whole(dev nvmf.Device) microfs.Segment {
	id := dev.Identity()
	return microfs.Segment{Length: nvmf.Bytes(id.Blocks) * id.LBASize}
}

func mount(t testing.TB, dev nvmf.Device) *microfs.FS {
	fs, err := microfs.Mount(context.Background(), dev, whole(dev), microfs.Options{MountPoint: "/nvmecr"})
	require.NoError(t, err)
	return fs
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, dev: partition(t, true), places: map[uint32]*microfs.FS{}}
	r.opts = Options{Format: 2, Run: testRun, Timeout: 2 * testTimeout, Logf: r.logf,
		Adopt: func(_ context.Context, place uint32) (*microfs.FS, func(), error) {
			return r.place(place), func() {}, nil
		}}
	r.start()
	t.Cleanup(func() {
		r.stop()
		for _, fs := range r.places {
			_ = fs.Unmount()
		}
	})
	return r
}

// attached is a device that ignores Close.
type attached struct{ nvmf.Device }

func (attached) Close() error { return nil }

func (r *rig) logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

// start starts an index. The file system of an earlier one that was not stopped ends as with a kill: its goroutines write nothing more.
func (r *rig) start() {
	if r.fs != nil {
		r.host.Kill()
		_ = r.fs.Unmount()
	}
	var err error
	r.host, err = blocktest.NewFaulty(attached{r.dev})
	require.NoError(r.t, err)
	if r.cache {
		r.host.UseVolatileCache()
	}
	r.fs = mount(r.t, r.host)
	r.x = New(r.fs, r.opts)
}

func (r *rig) stop() {
	r.x.Close()
	require.NoError(r.t, r.fs.Unmount())
	require.NoError(r.t, r.host.Close())
}

// place returns the partition of a rank.
func (r *rig) place(n uint32) *microfs.FS {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.places[n] == nil {
		r.places[n] = mount(r.t, partition(r.t, false))
	}
	return r.places[n]
}

// A user is a client of the index.
type user struct {
	r         *rig
	place     uint32
	conn      *wire.Conn
	stream    net.Conn
	served    chan error
	removed   []wire.Shard
	partition *microfs.FS
	ended     atomic.Bool // whether its process has ended
}

// indexConn is the index's end of a connection.
type indexConn struct {
	net.Conn
	u *user
}

func (f indexConn) Ended() bool { return f.u.ended.Load() }

// sharing is the client's end, where both share memory.
type sharing struct {
	net.Conn
	window []byte
}

func (s sharing) Window() []byte { return s.window }

// dial returns a client that has not said Hello.
func (r *rig) dial(place uint32) *user {
	near, there := net.Pipe()
	u := &user{r: r, place: place, stream: near, served: make(chan error, 1)}
	var window []byte
	if place == wire.NoPartition { // as a process of the index's host has it
		window = make([]byte, wire.MaxData)
	}
	u.conn = wire.NewConn(sharing{near, window}, testTimeout, func(list []wire.Shard) { u.removed = append(u.removed, list...) })
	go func(x *Index) { u.served <- x.Serve(indexConn{there, u}, window) }(r.x)
	return u
}

func (u *user) hello() *wire.Hello {
	return &wire.Hello{Format: 2, Run: testRun, Partition: u.place, PID: 7, Host: "here"}
}

func (r *rig) connect(place uint32) *user {
	u := r.dial(place)
	var w wire.Welcome
	require.NoError(r.t, u.conn.Call(wire.OpHello, u.hello(), &w))
	if place != wire.NoPartition {
		u.partition = r.place(place)
	}
	return u
}

// kill closes the connection without Goodbye.
func (u *user) kill() {
	_ = u.conn.Close()
	<-u.served
}

func (u *user) goodbye() {
	require.NoError(u.r.t, u.conn.Call(wire.OpGoodbye, nil, nil))
	require.NoError(u.r.t, <-u.served)
	_ = u.conn.Close()
}

// ok makes a call that has to succeed.
func (u *user) ok(op wire.Op, request, answer wire.Body) {
	u.r.t.Helper()
	require.NoError(u.r.t, u.conn.Call(op, request, answer), "%v", op)
}

func at(path string) wire.Name { return wire.Name{Dir: microfs.RootIno, Path: path} }

// open opens a path.
func (u *user) open(path string, flags int) wire.Attr {
	u.r.t.Helper()
	var f wire.File
	u.ok(wire.OpOpen, &wire.Open{Name: at(path), Flags: uint32(flags), Mode: 0o644}, &f)
	return f.Attr
}

// write writes to the shard of a file.
func (u *user) write(a wire.Attr, off int64, data string) {
	u.r.t.Helper()
	f, err := u.partition.Open(microfs.RootIno, wire.Shard{Ino: a.Ino, Birth: a.Birth, Cut: a.Cut}.Name(), unix.O_RDWR|unix.O_CREAT, 0o600)
	require.NoError(u.r.t, err)
	_, err = f.WriteAt([][]byte{[]byte(data)}, off)
	require.NoError(u.r.t, err)
	require.NoError(u.r.t, f.CloseIncomplete())
}

func publication(a wire.Attr, ranges ...wire.Range) wire.Publication {
	p := wire.Publication{Ino: a.Ino, Birth: a.Birth, Cut: a.Cut, Mtime: time.Unix(1, 0), Ranges: ranges}
	for _, r := range ranges {
		p.Size = max(p.Size, r.Off+r.Len)
	}
	return p
}

// put writes to the shard and publishes the data.
func (u *user) put(a wire.Attr, off int64, data string) {
	u.r.t.Helper()
	u.write(a, off, data)
	p := publication(a, wire.Range{Off: off, Len: int64(len(data))})
	u.ok(wire.OpPublish, &p, &wire.AttrAnswer{})
}

func (u *user) close(a wire.Attr, writer bool) {
	u.r.t.Helper()
	u.ok(wire.OpClose, &wire.Close{Writer: writer, Publication: wire.Publication{Ino: a.Ino}}, nil)
}

// create creates a file with content.
func (u *user) create(path, data string) wire.Attr {
	u.r.t.Helper()
	a := u.open(path, unix.O_RDWR|unix.O_CREAT)
	if data != "" {
		u.put(a, 0, data)
	}
	u.close(a, true)
	return a
}

func (u *user) stat(path string) wire.Attr {
	u.r.t.Helper()
	var a wire.AttrAnswer
	u.ok(wire.OpStat, &wire.Stat{Name: at(path)}, &a)
	return a.Attr
}

// segments returns the map of an open file.
func (u *user) segments(ino microfs.Ino) (wire.Attr, []wire.Segment) {
	u.r.t.Helper()
	var f wire.File
	u.ok(wire.OpMap, &wire.Map{Ino: ino, Len: 1 << 62}, &f)
	return f.Attr, f.Segments
}

// content returns the content of an open file, from shards and index.
func (u *user) content(ino microfs.Ino) string {
	u.r.t.Helper()
	a, segments := u.segments(ino)
	b := make([]byte, a.Size)
	var end int64
	for _, s := range segments {
		require.Equal(u.r.t, end, s.Off, "gaps in the map")
		end += s.Len
		part := b[s.Off:][:s.Len]
		switch s.Kind {
		case wire.Own:
			var d wire.Data
			u.ok(wire.OpRead, &wire.Read{Ino: ino, Off: s.Off, Len: uint32(s.Len)}, &d)
			copy(part, d.Bytes)
		case wire.Mapped:
			f, err := u.r.place(s.Partition).Open(microfs.RootIno, wire.Shard{Ino: ino, Birth: a.Birth, Cut: s.Cut}.Name(), unix.O_RDONLY, 0)
			require.NoError(u.r.t, err, "the shard that %+v is in", s)
			n, err := f.ReadAt([][]byte{part}, s.Off)
			require.NoError(u.r.t, err)
			require.EqualValues(u.r.t, s.Len, n, "a shard ends before its range")
			require.NoError(u.r.t, f.Close())
		}
	}
	require.Equal(u.r.t, a.Size, end)
	return string(b)
}

// read opens a file and returns its content.
func (u *user) read(path string) string {
	u.r.t.Helper()
	a := u.open(path, unix.O_RDONLY)
	defer u.close(a, false)
	return u.content(a.Ino)
}

// collect makes calls until no more releases come, and removes the shards.
func (u *user) collect() []wire.Shard {
	u.r.t.Helper()
	for n := -1; n != len(u.removed); {
		n = len(u.removed)
		u.ok(wire.OpSync, nil, nil)
	}
	list := u.removed
	u.removed = nil
	for _, s := range list {
		_ = u.partition.Unlink(microfs.RootIno, s.Name()) // an unwritten shard does not exist
	}
	return list
}
