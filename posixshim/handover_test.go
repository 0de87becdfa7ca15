package posixshim

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/hostile"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// packetSockets returns the two sockets of a connection for a handover.
func packetSockets(t testing.TB) (from, to int) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	return fds[0], fds[1]
}

// succession makes q the successor of p. The channel receives the result of the takeover.
func succession(t testing.TB, p, q *Process) <-chan error {
	from, to := packetSockets(t)
	p.Successor = func() (Successor, error) { return Successor{Socket: from, Rank: 2, Size: 5}, nil }
	done := make(chan error, 1)
	go func() {
		defer unix.Close(to)
		in, err := ReceiveHandover(to)
		if err == nil {
			if in.Rank != 2 || in.Size != 5 || in.PID != os.Getpid() {
				err = fmt.Errorf("rank %d of %d, process %d", in.Rank, in.Size, in.PID)
			}
			err = errors.Join(err, q.TakeOver(context.Background(), in))
			in.Close()
			err = errors.Join(err, in.Answer(to, err))
		}
		done <- err
	}()
	return done
}

// connect connects to the server with a number.
func connect(t testing.TB, number uint64) *client {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Connect(fd, &unix.SockaddrUnix{Name: serverName(number)}))
	return &client{t, fd, nil}
}

// successor returns a process of the same partition that can take over open files.
func (p *partition) successor(t testing.TB) *Process {
	own := &partition{dev: p.dev, seg: p.seg} // a copy, because other goroutines use it
	q := NewForTakeover(own.open, t.Logf)
	t.Cleanup(func() { assert.NoError(t, q.Finish()) })
	return q
}

// TestHandOver hands open files over to another process. Clients must be able to use the same handles and
// connections, and the files must keep their offsets, flags, locks, mappings and relayed data.
func TestHandOver(t *testing.T) {
	part := newPartition(t)
	p, q := part.process(t), part.successor(t)
	c := p.client(t)
	h, socket := c.open("f")
	n, _ := c.call(request(callWrite, []int64{int64(h), NoLimit}, "text"))
	require.EqualValues(t, 4, n)
	n, _ = c.call(request(callSetfl, []int64{int64(h), syscall.O_APPEND}))
	require.Zero(t, n)
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	n, _ = c.call(request(callLock, []int64{int64(h), 77, unix.F_SETLK, int64(len(bytesOf(&whole)))}, string(bytesOf(&whole))))
	require.Zero(t, n)
	c.send(request(callMap, []int64{int64(h), MapShared | MapWrite, 0, 4096}))
	n, _, _, memory := c.answer()
	require.EqualValues(t, h, n)
	own := file(t, p, "own", create)
	require.Positive(t, own)
	_, err := unix.Write(socket, []byte(" past"))
	require.NoError(t, err)

	done := succession(t, p, q)
	number, err := p.HandOver(1)
	require.NoError(t, err)
	require.NoError(t, <-done)
	assert.Positive(t, number)
	again, err := p.Serve()
	require.NoError(t, err)
	assert.NotEqual(t, number, again, "what it opens now is not the successor's")
	assert.Zero(t, p.files.count.Load())

	n, body := c.call(request(callPread, []int64{int64(h), 20, 0}))
	assert.Equal(t, "text past", string(body), "%d", n)
	n, _ = c.call(request(callSeek, []int64{int64(h), 0, unix.SEEK_CUR}))
	assert.EqualValues(t, 9, n)
	n, _ = c.call(request(callGetfl, []int64{int64(h)}))
	assert.EqualValues(t, syscall.O_APPEND, n&syscall.O_APPEND)
	data, err := unix.Mmap(memory, 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	data[0] = 'T'
	n, _ = c.call(request(callMsync, []int64{int64(h), 0, 4096}))
	assert.Zero(t, n)
	n, _ = c.call(request(callUnmap, []int64{int64(h)}))
	assert.Zero(t, n)
	n, body = c.call(request(callPread, []int64{int64(h), 20, 0}))
	assert.Equal(t, "Text past", string(body), "%d", n)
	assert.EqualValues(t, 0, q.server.peerMappings.Load())
	assert.Zero(t, q.maps.count.Load())

	// A new connection to the server number of the first process reaches the successor.
	d := connect(t, uint64(number))
	n, _ = d.call(request(callLock, []int64{int64(h), 78, unix.F_SETLK, int64(len(bytesOf(&whole)))}, string(bytesOf(&whole))))
	assert.EqualValues(t, -int64(syscall.EAGAIN), n, "the lock is held")
	other, _ := d.open("other")
	assert.Greater(t, int64(other)>>32, int64(takeoverGeneration))
	n, _ = d.call(request(callWrite, []int64{int64(h), NoLimit}, "!"))
	assert.EqualValues(t, 1, n)

	require.NoError(t, unix.Close(socket))
	n, _ = c.call(request(callRelease, []int64{int64(h), 0}))
	assert.Zero(t, n)
	a, err := q.mounts[0].mount.FS.Stat(microfs.RootIno, "own", true)
	require.NoError(t, err)
	assert.Zero(t, a.Size)
	assert.Empty(t, part.logged)
}

// TestHandOverWhileTheLastCloses checks that a client which connected before it closed the last file gets the result
// of the close, although the server hands its files over at that time.
func TestHandOverWhileTheLastCloses(t *testing.T) {
	part := newPartition(t)
	p, q := part.process(t), part.successor(t)
	c := p.client(t)
	h, socket := c.open("f")
	c.close()
	done := succession(t, p, q)
	succeeds := p.Successor
	var late *client
	p.Successor = func() (Successor, error) { // called when the server accepts no more connections
		late = connect(t, p.server.identity().number)
		assert.NoError(t, unix.Close(socket))
		return succeeds()
	}
	_, err := p.HandOver(0)
	require.NoError(t, err)
	require.NoError(t, <-done)
	n, _ := late.call(request(callRelease, []int64{int64(h)}))
	assert.Zero(t, n)
}

// TestHandOverNothing checks that a process whose files no other process uses does not connect to a successor.
func TestHandOverNothing(t *testing.T) {
	p := newPartition(t).process(t)
	p.Successor = func() (Successor, error) { assert.Fail(t, "asked"); return Successor{}, syscall.EIO }
	file(t, p, "f", create)
	n, err := p.HandOver(0)
	assert.NoError(t, err)
	assert.Zero(t, n)
}

// TestHandOverToNobody checks that a process without a successor continues to serve its files, and prints why it did
// not hand them over.
func TestHandOverToNobody(t *testing.T) {
	part := newPartition(t)
	p := part.process(t)
	c := p.client(t)
	h, socket := c.open("f")
	_, err := p.Serve()
	require.NoError(t, err)
	p.Successor = func() (Successor, error) { return Successor{}, syscall.ECONNREFUSED }
	var said []string
	p.logf = func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	n, err := p.HandOver(0)
	assert.Equal(t, syscall.EIO, err)
	assert.Zero(t, n)
	require.Len(t, said, 1)
	assert.Contains(t, said[0], "cannot hand the open files that it shares over")
	m, _ := c.call(request(callWrite, []int64{int64(h), NoLimit}, "text"))
	assert.EqualValues(t, 4, m)
	require.NoError(t, unix.Close(socket))
}

// TestHandOverAmongCalls makes calls during a handover. The first process or the successor must answer each call
// exactly once.
func TestHandOverAmongCalls(t *testing.T) {
	part := newPartition(t)
	p, q := part.process(t), part.successor(t)
	c := p.client(t)
	h, socket := c.open("f")
	n, _ := c.call(request(callSetfl, []int64{int64(h), syscall.O_APPEND}))
	require.Zero(t, n)
	const times = 2000
	half, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := range times {
			if i == times/2 {
				close(half)
			}
			n, _ := c.call(request(callWrite, []int64{int64(h), NoLimit}, "12345678"))
			assert.EqualValues(t, 8, n)
		}
	}()
	<-half
	done := succession(t, p, q)
	_, err := p.HandOver(0)
	require.NoError(t, err)
	require.NoError(t, <-done)
	<-ended
	n, _ = c.call(request(callSeek, []int64{int64(h), 0, unix.SEEK_END}))
	assert.EqualValues(t, 8*times, n)
	require.NoError(t, unix.Close(socket))
}

// TestSuccessorGivesUp checks that a successor closes the partition when no other process uses a file or a connection
// of the first process.
func TestSuccessorGivesUp(t *testing.T) {
	part := newPartition(t)
	p, q := part.process(t), part.successor(t)
	c := p.client(t)
	_, socket := c.open("f")
	done := succession(t, p, q)
	number, err := p.HandOver(0)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.NoError(t, unix.Close(socket))
	require.NoError(t, unix.Close(c.fd))
	c.fd = -1
	assert.Eventually(t, func() bool {
		q.mu.RLock()
		defer q.mu.RUnlock()
		return q.mounts[0].mount == nil
	}, Hang, 1000000)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	assert.Equal(t, syscall.ECONNREFUSED, unix.Connect(fd, &unix.SockaddrUnix{Name: serverName(uint64(number))}))
}

// TestHandOverOfRenamed hands over an unlinked file and a renamed file.
func TestHandOverOfRenamed(t *testing.T) {
	part := newPartition(t)
	p := part.process(t)
	var q *Process
	q = NewForTakeover(func(write bool) (*vfs.Mount, error) {
		fs, err := microfs.Mount(context.Background(), part.dev, part.seg, microfs.Options{Generation: 1, Keep: q.Kept()})
		if err != nil {
			return nil, err
		}
		return &vfs.Mount{FS: vfs.Microfs(fs), Writable: true, Close: fs.Unmount}, nil
	}, t.Logf)
	t.Cleanup(func() { assert.NoError(t, q.Finish()) })
	c := p.client(t)
	unlinked, _ := c.open("unlinked")
	renamed, _ := c.open("renamed")
	require.NoError(t, p.Unlink(PathAt{Path: "unlinked"}))
	require.NoError(t, p.Rename(PathAt{Path: "renamed"}, PathAt{Path: "other"}, 0))
	file(t, p, "renamed", create)
	done := succession(t, p, q)
	_, err := p.HandOver(0)
	require.NoError(t, err)
	require.NoError(t, <-done)
	for _, h := range []Handle{unlinked, renamed} {
		n, _ := c.call(request(callWrite, []int64{int64(h), NoLimit}, "text"))
		assert.EqualValues(t, 4, n)
	}
	a, err := q.Attr(at("other"), 0)
	require.NoError(t, err)
	assert.EqualValues(t, 4, a.Size)
	a, err = q.Attr(at("renamed"), 0)
	require.NoError(t, err)
	assert.Zero(t, a.Size)
}

// unsyncedFile is a file whose Sync fails.
type unsyncedFile struct{ vfs.File }

func (unsyncedFile) Sync() error { return syscall.ENOSPC }

// TestHandOverAfterLoss checks that an error of writing before the handover is returned by the next fsync, and that
// an error of closing the partition is printed. The files must be handed over in both cases.
func TestHandOverAfterLoss(t *testing.T) {
	part := newPartition(t)
	p := New(func(write bool) (*vfs.Mount, error) {
		m, err := part.open(write)
		if err == nil {
			unmount := m.Close
			m.Close = func() error { return errors.Join(unmount(), errors.New("the target is lost")) }
		}
		return m, err
	}, func(format string, args ...any) { part.logged = append(part.logged, fmt.Sprintf(format, args...)) })
	q := part.successor(t)
	c := p.client(t)
	h, socket := c.open("f")
	f, err := p.files.get(h)
	require.NoError(t, err)
	f.first = unsyncedFile{f.first}
	done := succession(t, p, q)
	_, err = p.HandOver(0)
	require.NoError(t, err)
	require.NoError(t, <-done)
	assert.Equal(t, []string{fmt.Sprintf("process %d: what it wrote may not be complete: the target is lost", os.Getpid())}, part.logged)
	n, _ := c.call(request(callFsync, []int64{int64(h)}))
	assert.EqualValues(t, -int64(syscall.ENOSPC), n)
	n, _ = c.call(request(callFsync, []int64{int64(h)}))
	assert.Zero(t, n)
	require.NoError(t, unix.Close(socket))
}

// TestHandOverRefused checks that connections of other processes end if the successor cannot open the partition.
func TestHandOverRefused(t *testing.T) {
	part := newPartition(t)
	p := part.process(t)
	q := NewForTakeover(func(bool) (*vfs.Mount, error) { return nil, syscall.ENODEV }, t.Logf)
	c := p.client(t)
	_, socket := c.open("f")
	done := succession(t, p, q)
	_, err := p.HandOver(0)
	assert.Equal(t, syscall.EIO, err)
	assert.ErrorIs(t, <-done, syscall.ENODEV)
	require.Len(t, part.logged, 1)
	assert.Contains(t, part.logged[0], "could not hand over")
	n, err := unix.Read(c.fd, make([]byte, 1))
	assert.NoError(t, err)
	assert.Zero(t, n, "the connection has ended")
	require.NoError(t, unix.Close(socket))
}

// samplePackets returns a packet of each kind, without descriptors.
func samplePackets() []*packet {
	f := newPacket(kindFile, -1).put64(8, 0x1_0000_0002).put64(16, 3).put64(24, 1).put64(32, 0x0102030405060708).
		put32(40, syscall.O_RDWR|syscall.O_APPEND).put32(44, uint32(syscall.ENOSPC)).put32(48, 0).put32(52, 2)
	f.b = append(f.b, "ab"...)
	c := newPacket(kindCaller, -1).put32(8, 4711).put32(12, 1)
	c.b = append(c.b, make([]byte, 16)...)
	c.put64(16, 0x1_0000_0002).put64(24, 1)
	return []*packet{
		newPacket(kindBegin, -1).put32(8, 2).put32(12, 5).put64(16, 0x1122334455667788).put32(24, 4711),
		f, newPacket(kindWatch, -1).put64(8, 0x1_0000_0002).put32(16, 1), c,
		newPacket(kindLock, -1).put64(8, 3).put64(16, -4711).put64(24, 0x1_0000_0002).put64(32, 1).put64(40, 9).put32(48, 1),
		newPacket(kindMemory, -1).put64(8, 3).put64(16, 4096).put64(24, 0x1_0000_0002),
		newPacket(kindClean, -1).put64(8, 3),
		newPacket(kindEnd, -1).put32(8, 7), newPacket(kindAnswer, -1).put32(8, uint32(syscall.EIO)),
	}
}

var updateHandOver = flag.Bool("update-handover", false, "write testdata/handover.hex")

// TestGoldenHandOver compares the packets of a handover with the golden file.
func TestGoldenHandOver(t *testing.T) {
	var text strings.Builder
	for _, p := range samplePackets() {
		fmt.Fprintln(&text, hex.EncodeToString(p.b))
	}
	if *updateHandOver {
		require.NoError(t, os.WriteFile("testdata/handover.hex", []byte(text.String()), 0o600))
	}
	golden, err := os.ReadFile("testdata/handover.hex")
	require.NoError(t, err)
	assert.Equal(t, string(golden), text.String(), "the layout has changed: it needs another version")
}

// FuzzHandOver sends arbitrary bytes in place of a handover. They may end the connection, and must leave no
// descriptor open.
func FuzzHandOver(f *testing.F) {
	for drop := range samplePackets() {
		var all []byte
		for i, p := range samplePackets() {
			if i != drop {
				all = append(append(all, byte(len(p.b)), byte(len(p.b)>>8)), p.b...)
			}
		}
		f.Add(all)
	}
	f.Fuzz(func(t *testing.T, all []byte) {
		if len(all) > 1<<14 {
			return
		}
		part := newPartition(t)
		q := NewForTakeover(part.open, func(string, ...any) {})
		defer func() { _ = q.Finish() }() // may fail: the packets may name files that do not exist
		from, to := packetSockets(t)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			defer unix.Close(from)
			sendFuzzed(from, all)
		}()
		hostile.Bounded(t, 64<<20, Hang, func() {
			in, err := ReceiveHandover(to)
			if err == nil {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				_ = q.TakeOver(ctx, in)
				in.Close()
			}
		})
		_ = unix.Close(to)
		<-sent
	})
}

// sendFuzzed sends the packets in all, each of which follows its length. A packet of a kind that has a descriptor
// gets one.
func sendFuzzed(to int, all []byte) {
	for len(all) > 2 {
		n := min(int(all[0])|int(all[1])<<8, len(all)-2)
		b := all[2 : 2+n]
		all = all[2+n:]
		p := &packet{b: b, fd: -1}
		if n >= 8 {
			p.kind = handOverKind(b[6])
		}
		if !p.kind.withDescriptor() {
			_ = sendPacket(to, p)
			continue
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return
		}
		_ = unix.Close(fds[1])
		p.fd = fds[0]
		if p.kind == kindBegin {
			p.fd, err = listenAt(&unix.SockaddrUnix{}, 1)
			_ = unix.Close(fds[0])
		}
		if p.kind == kindMemory || p.kind == kindClean {
			_ = unix.Close(fds[0])
			if p.fd, err = unix.MemfdCreate("fuzz", 0); err == nil {
				err = unix.Ftruncate(p.fd, 4096)
			}
		}
		if err == nil {
			_ = sendPacket(to, p)
		}
		_ = unix.Close(p.fd)
	}
}

// TestNoHandover checks that ReceiveHandover returns io.EOF, which is not reported, if the socket is closed without a
// packet.
func TestNoHandover(t *testing.T) {
	from, to := packetSockets(t)
	require.NoError(t, unix.Close(from))
	_, err := ReceiveHandover(to)
	assert.Equal(t, io.EOF, err)
	require.NoError(t, unix.Close(to))
}
