package tree

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
	"nvmecr/tree/index"
	"nvmecr/tree/wire"
)

// testTimeout is how long a test waits for an event that has to happen.
const testTimeout = 2 * time.Minute

const root = microfs.RootIno

var (
	ctx     = context.Background()
	testRun = uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff")
)

// A disk is a partition in memory.
type disk struct {
	t   testing.TB
	dev nvmf.Device
	seg microfs.Segment
}

func newDisk(t testing.TB, ranges bool) *disk {
	dev, err := memdev.New(8*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = dev.Close() })
	d := &disk{t: t, dev: dev, seg: microfs.Segment{Length: 8 * nvmf.MiB}}
	require.NoError(t, microfs.Format(ctx, dev, d.seg, microfs.FormatOptions{Ranges: ranges, Hugeblock: 4 * nvmf.KiB}))
	return d
}

// attached is a device that ignores Close.
type attached struct{ nvmf.Device }

func (attached) Close() error { return nil }

// mount mounts the disk for one process; dev dies with that process.
func (d *disk) mount(dev nvmf.Device, o microfs.Options) *microfs.FS {
	o.MountPoint, o.Timeout = "/nvmecr", time.Millisecond
	fs, err := microfs.Mount(ctx, dev, d.seg, o)
	require.NoError(d.t, err)
	return fs
}

// A rig is the index of a job and partitions for ranks.
type rig struct {
	t     testing.TB
	home  *disk // the index's
	disks []*disk
	fs    *microfs.FS
	index *index.Index
	// homeDev is the device of the index's partition, for the present index.
	homeDev *blocktest.Faulty
	// Devices of ranks have a volatile cache, which is lost when they are killed; or they write behind.
	cache, behind bool
	shares        bool // ranks share memory with the index
	lease         time.Duration
	lost          uint64          // seed of lost cached data
	gone          map[uint32]bool // partitions that cannot be reached
	more          nvmf.Bytes      // space of further partitions, which are not disks of the test
	copies        map[string]copied

	mu    sync.Mutex
	alive map[*rank]struct{}
	conns []*countedConn // to the present index
}

func newRig(t testing.TB, partitions int) *rig {
	r := &rig{t: t, home: newDisk(t, true), shares: true, alive: make(map[*rank]struct{})}
	for range partitions {
		r.disks = append(r.disks, newDisk(t, false))
	}
	r.start()
	t.Cleanup(func() {
		for _, p := range r.processes() {
			p.kill()
		}
		r.stop()
	})
	return r
}

func (r *rig) processes() (list []*rank) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.alive {
		list = append(list, p)
	}
	return list
}

// start starts the index.
func (r *rig) start() {
	var err error
	r.homeDev, err = blocktest.NewFaulty(attached{r.home.dev})
	require.NoError(r.t, err)
	if r.cache {
		r.homeDev.UseVolatileCache()
	}
	r.serve()
}

// serve starts an index on the partition, which may have been left open by an index that was killed.
func (r *rig) serve() {
	r.fs = r.home.mount(r.homeDev, microfs.Options{})
	r.index = index.New(r.fs, index.Options{Run: testRun, Timeout: testTimeout, Lease: r.lease, Logf: r.t.Logf, Adopt: r.adopt, Space: r.space, Copy: r.copyOf})
}

// stop ends the index. Clients see the same as after a kill.
func (r *rig) stop() {
	r.hangUp()
	require.NoError(r.t, r.fs.Unmount())
	require.NoError(r.t, r.homeDev.Close())
}

// hangUp ends the index, and waits until the ends of all its connections can be seen (Idle), as a kill does.
func (r *rig) hangUp() {
	r.index.Close()
	r.mu.Lock()
	list := r.conns
	r.conns = nil
	r.mu.Unlock()
	for _, c := range list {
		<-c.served
	}
}

// adopt mounts a partition after the death of its process; or, after the death of the index, through the process's
// device, whose cache has to be flushed.
func (r *rig) adopt(_ context.Context, place uint32) (fs *microfs.FS, done func(), err error) {
	d := r.disks[place]
	err = syscall.ENOTCONN
	for _, p := range r.processes() {
		if p.place == place {
			fs, err = microfs.Mount(ctx, attached{p.dev}, d.seg, microfs.Options{ReadOnly: true, Timeout: time.Millisecond})
		}
	}
	if err != nil {
		fs = d.mount(d.dev, microfs.Options{ReadOnly: true})
	}
	return fs, func() { _ = fs.Unmount() }, nil
}

// space returns the space of all disks.
func (r *rig) space(context.Context) (total, free nvmf.Bytes, _ error) {
	for _, d := range r.disks {
		fs := d.mount(attached{d.dev}, microfs.Options{ReadOnly: true})
		s := fs.StatFS()
		total, free = total+nvmf.Bytes(s.Blocks)*s.Hugeblock, free+nvmf.Bytes(s.Free)*s.Hugeblock
		if err := fs.Unmount(); err != nil {
			return 0, 0, err
		}
	}
	return total + r.more, free + r.more, nil
}

// A countedConn counts messages. Requests are sent at once.
type countedConn struct {
	net.Conn
	writes atomic.Int64
	served chan struct{} // closed when the index has noticed the end of the process
	window []byte        // memory shared by both ends, or nil
	heard  func()        // if not nil, called once, after the next answer
	looked func()        // if not nil, called once, by Idle
	asks   func()        // if not nil, called once, before the next request
}

// socketPair returns both ends of a connection that, unlike a net.Pipe, holds what was not received yet.
func socketPair(t testing.TB) (ends [2]net.Conn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "the index")
		ends[i], err = net.FileConn(file)
		require.NoError(t, errors.Join(err, file.Close()))
	}
	return ends
}

// dial connects a process to the index.
func (r *rig) dial() *countedConn {
	ends := socketPair(r.t)
	near, far := ends[0], ends[1]
	c := &countedConn{Conn: near, served: make(chan struct{})}
	if r.shares {
		c.window = make([]byte, wire.MaxData)
	}
	r.mu.Lock()
	r.conns = append(r.conns, c)
	r.mu.Unlock()
	go func(x *index.Index) {
		defer close(c.served)
		_ = x.Serve(far, c.window) // returns an error at the end of the process
	}(r.index)
	return c
}

// Window returns the memory shared by both ends.
func (c *countedConn) Window() []byte { return c.window }

// Idle reports whether the connection is still open.
func (c *countedConn) Idle() bool {
	once(&c.looked)
	select {
	case <-c.served:
		return false
	default:
		return true
	}
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	once(&c.heard)
	return n, err
}

func once(hook *func()) {
	if f := *hook; f != nil {
		*hook = nil
		f()
	}
}

func (c *countedConn) Write(b []byte) (int, error) {
	once(&c.asks)
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// A rank is a process of the job, a rank or not.
type rank struct {
	*FS
	r       *rig
	place   uint32
	stream  net.Conn
	asked   *atomic.Int64 // number of requests sent
	counted *countedConn
	looks   *readers
	dev     *blocktest.Faulty // device of the own partition; nil if there is none
	own     *microfs.FS
	served  chan struct{} // closed when the index has noticed the end of the process
}

// join starts a process that writes a partition, or wire.NoPartition.
func (r *rig) join(place uint32) *rank {
	conn := r.dial()
	p := &rank{r: r, place: place, stream: conn, asked: &conn.writes, counted: conn, served: conn.served, looks: &readers{r: r, mounts: map[uint32]*mounted{}}}
	c, err := Connect(conn, wire.Hello{Run: testRun, Partition: place, PID: 1, Host: "here"}, testTimeout)
	require.NoError(r.t, err)
	if place != wire.NoPartition {
		p.dev, err = blocktest.NewFaulty(attached{r.disks[place].dev})
		require.NoError(r.t, err)
		if r.cache {
			p.dev.UseVolatileCache()
		}
		p.own = r.disks[place].mount(p.dev, microfs.Options{WriteBehind: r.behind})
	}
	p.FS, err = New(c, Options{Own: p.own, Readers: p.looks, Logf: p.logf})
	require.NoError(r.t, err)
	r.mu.Lock()
	r.alive[p] = struct{}{}
	r.mu.Unlock()
	return p
}

// logf fails the test on any message of the process, unless its device has died.
func (p *rank) logf(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !strings.Contains(text, "faulty device is off") && !strings.Contains(text, "is read from its copy: ") {
		p.r.t.Error(text)
	}
}

// leave ends the process in order.
func (p *rank) leave() {
	require.NoError(p.r.t, p.FS.Close())
	if p.own != nil {
		require.NoError(p.r.t, p.own.Unmount())
	}
	p.gone()
}

// kill kills the process. Its unwritten data is lost.
func (p *rank) kill() {
	if p.own != nil {
		require.NoError(p.r.t, p.dev.Crash(p.r.lost))
	}
	_ = p.stream.Close()
	if p.r.cache { // the device lost power: other mounts have to be mounted again
		for _, q := range p.r.processes() {
			q.looks.forget(p.place)
		}
	}
	if p.own != nil {
		_ = p.own.Unmount() // ends its goroutine; the device is dead
	}
	p.gone()
}

func (p *rank) gone() {
	<-p.served
	for _, fs := range p.looks.all {
		_ = fs.Unmount() // only read
	}
	if p.dev != nil {
		_ = p.dev.Close() // dead or idle
	}
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	delete(p.r.alive, p)
}

// readers are read-only mounts of one process.
type readers struct {
	r      *rig
	mu     sync.Mutex
	mounts map[uint32]*mounted
	all    []*microfs.FS // all mounts so far
	looks  int
	late   int // number of times that it returns an old mount
}

type mounted struct {
	fs     *microfs.FS
	looked time.Time
}

func (m *readers) forget(place uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mounts, place)
}

func (m *readers) Reader(place uint32, since time.Time) (*microfs.FS, error) {
	if m.r.gone[place] {
		return nil, fmt.Errorf("target 10.0.0.7:4420 cannot be reached: %w", syscall.ETIMEDOUT)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, old := time.Now(), m.mounts[place]
	if old != nil && old.looked.After(since) {
		return old.fs, nil
	}
	if m.late > 0 {
		m.late--
		return old.fs, nil
	}
	m.looks++
	if old == nil || !old.fs.Current(func(nvmf.Queue) bool { return true }) {
		d := m.r.disks[place]
		fs, err := microfs.Mount(ctx, d.dev, d.seg, microfs.Options{ReadOnly: true, Timeout: time.Millisecond})
		if err != nil {
			return nil, err
		}
		old = &mounted{fs: fs}
		m.all = append(m.all, fs)
	}
	m.mounts[place] = &mounted{fs: old.fs, looked: now}
	return old.fs, nil
}

// open opens an existing path.
func (p *rank) open(path string, flags int) vfs.File {
	p.r.t.Helper()
	f, err := p.Open(root, path, flags, 0o644)
	require.NoError(p.r.t, err, path)
	return f
}

func put(t testing.TB, f vfs.File, off int64, text string) {
	t.Helper()
	n, err := f.WriteAt([][]byte{[]byte(text)}, off)
	require.NoError(t, err)
	require.Equal(t, len(text), n)
}

func get(t testing.TB, f vfs.File) string {
	t.Helper()
	size, err := f.Size()
	require.NoError(t, err)
	buf := make([]byte, size+10)
	n, err := f.ReadAt([][]byte{buf}, 0)
	require.NoError(t, err)
	return string(buf[:n])
}

// write creates a file with this text; read reads one.
func (p *rank) write(path, text string) {
	p.r.t.Helper()
	f := p.open(path, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC)
	put(p.r.t, f, 0, text)
	require.NoError(p.r.t, f.Close())
}

func (p *rank) read(path string) string {
	p.r.t.Helper()
	f := p.open(path, unix.O_RDONLY)
	defer func() { assert.NoError(p.r.t, f.Close()) }()
	return get(p.r.t, f)
}

// shards lists the shards in the partition of a process.
func (p *rank) shards() (names []string) {
	f, err := p.own.Open(root, "/", unix.O_RDONLY, 0)
	require.NoError(p.r.t, err)
	list, err := f.ReadDir("", 0)
	require.NoError(p.r.t, err)
	require.NoError(p.r.t, f.Close())
	for _, e := range list {
		names = append(names, e.Name)
	}
	return names
}
