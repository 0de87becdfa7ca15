package posixshim

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
)

// request returns the bytes of a request, as shim/remote/remote.c sends it.
func request(call uint32, numbers []int64, data ...string) []byte {
	b := make([]byte, requestHead)
	for _, d := range data {
		b = binary.NativeEndian.AppendUint32(b, uint32(len(d)))
		b = append(b, d...)
	}
	binary.NativeEndian.PutUint32(b, protocol)
	binary.NativeEndian.PutUint32(b[4:], call)
	binary.NativeEndian.PutUint32(b[8:], uint32(len(b)-requestHead))
	for i, n := range numbers {
		binary.NativeEndian.PutUint64(b[16+8*i:], uint64(n))
	}
	return b
}

// bytesOf returns the memory of a lock.
func bytesOf(l *unix.Flock_t) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(l)), unsafe.Sizeof(*l))
}

// client is the client's end of a connection to a process.
type client struct {
	t    testing.TB
	fd   int
	done <-chan struct{} // closed when the process has closed the connection
}

// client connects a client to the process.
func (p *Process) client(t testing.TB) *client {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.SetNonblock(fds[1], true))
	p.server.connections.Add(1)
	conn := p.server.addConnection(os.NewFile(uintptr(fds[1]), "connection"), nil)
	c := &client{t, fds[0], conn.done}
	p.serveConnection(conn)
	t.Cleanup(c.close)
	return c
}

func (c *client) close() {
	if c.fd >= 0 {
		require.NoError(c.t, unix.Close(c.fd))
	}
	c.fd = -1
	select {
	case <-c.done:
	case <-time.After(Hang):
		c.t.Fatal("the connection is not given up")
	}
}

func (c *client) send(b []byte) {
	_ = unix.Sendto(c.fd, b, unix.MSG_NOSIGNAL, nil) // the process may have closed the connection
}

// answer receives a reply. descriptor is 0 if the reply has none.
func (c *client) answer() (result int64, body []byte, flags uint32, descriptor int) {
	var head [replyHead]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(c.fd, head[:], oob, unix.MSG_WAITALL|unix.MSG_CMSG_CLOEXEC)
	require.NoError(c.t, err)
	require.Equal(c.t, replyHead, n)
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(messages) == 1 {
		fds, err := unix.ParseUnixRights(&messages[0])
		require.NoError(c.t, err)
		descriptor = fds[0]
	}
	body = make([]byte, binary.NativeEndian.Uint32(head[8:]))
	for got := 0; got < len(body); got += n {
		n, err = unix.Read(c.fd, body[got:])
		require.NoError(c.t, err)
		require.Positive(c.t, n)
	}
	return int64(binary.NativeEndian.Uint64(head[:])), body, binary.NativeEndian.Uint32(head[12:]), descriptor
}

// call makes a call and returns its result.
func (c *client) call(b []byte) (int64, []byte) {
	c.send(b)
	result, body, _, _ := c.answer()
	return result, body
}

// open opens a file through the connection, and returns its handle and the descriptor of its socket.
func (c *client) open(path string) (Handle, int) {
	c.send(request(callOpen, []int64{0, create, 0o600}, path))
	h, _, flags, descriptor := c.answer()
	require.Positive(c.t, h)
	require.EqualValues(c.t, replyDescriptor, flags)
	require.Positive(c.t, descriptor)
	return Handle(h), descriptor
}

// TestServedCalls makes calls of a client on a file of the process.
func TestServedCalls(t *testing.T) {
	p := newPartition(t).process(t)
	c := p.client(t)
	h, socket := c.open("f")
	n, _ := c.call(request(callWrite, []int64{int64(h), NoLimit}, "content"))
	assert.EqualValues(t, 7, n)
	n, _ = c.call(request(callPwrite, []int64{int64(h), 3, NoLimit}, "TENT"))
	assert.EqualValues(t, 4, n)
	n, _ = c.call(request(callPwrite, []int64{int64(h), 3, 5}, "TENT!"))
	assert.EqualValues(t, 2, n, "as much as the sender's limit lets it")
	n, _ = c.call(request(callPwrite, []int64{int64(h), 6, 6}, "TENT!"))
	assert.EqualValues(t, fileTooLarge, n)
	n, body := c.call(request(callPread, []int64{int64(h), 100, 1}))
	assert.EqualValues(t, 6, n)
	assert.Equal(t, "onTENT", string(body), "not more than was read")
	n, _ = c.call(request(callRead, []int64{int64(h), 100}))
	assert.Zero(t, n, "the offset is that of the open file")
	n, body = c.call(request(callStat, []int64{0, 0, structStat}, "f"))
	assert.Zero(t, n)
	assert.Len(t, body, int(structStat))
	n, body = c.call(request(callStat, []int64{0, 0, structStat}, "missing"))
	assert.EqualValues(t, -int64(syscall.ENOENT), n)
	assert.Empty(t, body)

	assert.NoError(t, unix.Close(socket))
	require.Eventually(t, func() bool { return p.files.count.Load() == 0 }, Hang, time.Millisecond,
		"the last descriptor has been closed")
	n, _ = c.call(request(callWrite, []int64{int64(h), NoLimit}, "content"))
	assert.EqualValues(t, -int64(syscall.EBADF), n)
}

// TestCloseOfASharedFileIsComplete checks that a file is closed when the process that closed its last descriptor has
// the reply, although a goroutine of the server notices the close, too.
func TestCloseOfASharedFileIsComplete(t *testing.T) {
	p := newPartition(t).process(t)
	other := file(t, p, "f", create)
	for range 500 {
		h := file(t, p, "f", create)
		socket, err := p.Share(h)
		require.NoError(t, err)
		require.NoError(t, p.Flock(h, unix.LOCK_EX))
		require.NoError(t, unix.Close(socket))
		require.NoError(t, p.Release(h))
		require.NoError(t, p.Flock(other, unix.LOCK_EX))
		require.NoError(t, p.Flock(other, unix.LOCK_UN))
	}
	assert.EqualValues(t, 1, p.files.count.Load())
}

// alone calls Alone until no other process has files of p. That may take several calls, because p itself has the
// descriptor of a file for a moment while it sends the descriptor.
func alone(p *Process) (left int) {
	for range Hang / time.Millisecond {
		if left, _ = p.Alone(1); left == 0 {
			return 0
		}
		time.Sleep(time.Millisecond)
	}
	return left
}

// TestLeaveAnswers checks that a process that is about to end waits until the process that closed its last file has
// asked for the result.
func TestLeaveAnswers(t *testing.T) {
	p := newPartition(t).process(t)
	p.server.closeQueryTime = Hang
	c := p.client(t)
	h, socket := c.open("f")
	require.NoError(t, unix.Close(socket))
	left := make(chan int, 1)
	go func() {
		defer close(left)
		n := alone(p)
		left <- n
	}()
	select {
	case <-left:
		assert.Fail(t, "it has not waited for the question")
	case <-time.After(100 * time.Millisecond):
	}
	n, _ := c.call(request(callRelease, []int64{int64(h), 0}))
	assert.Zero(t, n)
	assert.Zero(t, <-left)

	p = newPartition(t).process(t)
	p.server.closeQueryTime = 100 * time.Millisecond
	c = p.client(t)
	rest, err := p.Alone(1)
	require.NoError(t, err)
	require.Zero(t, rest)
	_, err = p.Serve() // the process does not end, and serves files again
	require.NoError(t, err)
	_, socket = c.open("f")
	require.NoError(t, unix.Close(socket))
	assert.Zero(t, alone(p), "nobody asks")
}

// TestLeaveAnswersWhoComesLast checks that a process that is about to end waits for a client that connected before
// the last file was closed, although the connection is not accepted yet.
func TestLeaveAnswersWhoComesLast(t *testing.T) {
	p := newPartition(t).process(t)
	p.server.closeQueryTime = Hang
	first := p.client(t)
	_, socket := first.open("f")
	first.close()
	number, err := p.Serve()
	require.NoError(t, err)
	p.server.peersMu.Lock() // keeps the server from accepting connections
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Connect(fd, &unix.SockaddrUnix{Name: serverName(uint64(number))}))
	require.NoError(t, unix.Close(socket))
	left := make(chan int, 1)
	go func() {
		defer close(left)
		n := alone(p)
		left <- n
	}()
	select {
	case <-left:
		assert.Fail(t, "it has not waited for who comes")
	case <-time.After(100 * time.Millisecond):
	}
	p.server.peersMu.Unlock()
	require.NoError(t, unix.Close(fd)) // the client ends without a request
	assert.Zero(t, <-left)
}

// slowClose is a file whose close takes a while, and then fails.
type slowClose struct {
	vfs.File
	closed *atomic.Bool
}

func (s slowClose) Close() error {
	time.Sleep(50 * time.Millisecond)
	s.closed.Store(true)
	return errors.Join(s.File.Close(), syscall.ENOSPC)
}

// TestCloseByAnotherProcess checks that another process that closes the last descriptor gets the result after the
// file is closed, also if the owner has noticed the close before the request.
func TestCloseByAnotherProcess(t *testing.T) {
	p := newPartition(t).process(t)
	for _, c := range []struct {
		name string
		wait func(h Handle) bool // reports whether the other process asks now
	}{
		{"at once", func(Handle) bool { return true }},
		{"meanwhile", func(Handle) bool { time.Sleep(20 * time.Millisecond); return true }},
		{"afterwards", func(h Handle) bool { _, err := p.files.get(h); return err != nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := file(t, p, "f", create)
			f, err := p.files.get(h)
			require.NoError(t, err)
			var closed atomic.Bool
			f.first = slowClose{f.first, &closed}
			socket, err := p.Share(h)
			require.NoError(t, err)
			require.NoError(t, p.Release(h)) // the owner's descriptor
			require.NoError(t, unix.Close(socket))
			require.Eventually(t, func() bool { return c.wait(h) }, Hang, time.Millisecond)
			assert.ErrorIs(t, p.releaseForPeer(h, 0), syscall.ENOSPC)
			assert.True(t, closed.Load())
		})
	}
}

// TestLockOfAFileThatIsClosed checks that a lock which is taken while the file is being closed is released with the
// file.
func TestLockOfAFileThatIsClosed(t *testing.T) {
	p := newPartition(t).process(t)
	for range 2000 {
		h := file(t, p, "f", create)
		done := make(chan error)
		go func() {
			err := p.Flock(h, unix.LOCK_EX)
			done <- errors.Join(err, p.Lock(h, 1, unix.F_OFD_SETLK, bytesOf(&unix.Flock_t{Type: unix.F_WRLCK})))
		}()
		require.NoError(t, p.Release(h))
		<-done
		require.Zero(t, p.locks.files.Load())
	}
}

// TestRequestsThatAreNone checks that an invalid request fails with EPROTO. The connection must stay open if the
// beginning of the next request is known.
func TestRequestsThatAreNone(t *testing.T) {
	edit := func(b []byte, at int, v uint32) []byte {
		binary.NativeEndian.PutUint32(b[at:], v)
		return b
	}
	one := []int64{1}
	for _, c := range []struct {
		name    string
		request []byte
		last    bool // the server closes the connection
	}{
		{"another version", edit(request(callRead, one), 0, protocol+1), true},
		{"longer than any", edit(request(callRead, one), 8, 1<<31), true},
		{"a call that there is not", request(1000, one), false},
		{"a call of the process's own", request(callOpen+1, one), false},
		{"less data than it needs", request(callWrite, one), false},
		{"more data than it needs", request(callWrite, one, "a", "b"), false},
		{"data of another length than it says", edit(request(callWrite, one, "abc"), requestHead, 4), false},
		{"data of an endless length", edit(request(callWrite, one, "abc"), requestHead, 1<<32-1), false},
		{"half a length", append(edit(request(callWrite, one), 8, 2), 0, 0), false},
		{"a reply of less than nothing", request(callRead, []int64{1, -1}), false},
		{"one path of two", request(callRename, []int64{0, 0}, "a"), false},
		{"a lock in a reply buffer that is too small", request(callLock, []int64{1, 1, unix.F_SETLK, 5}, "lock"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPartition(t).process(t)
			conn := p.client(t)
			conn.send(c.request)
			result, body, flags, _ := conn.answer()
			assert.EqualValues(t, -int64(syscall.EPROTO), result)
			assert.Empty(t, body)
			if c.last {
				assert.EqualValues(t, replyLast, flags)
				<-conn.done
				return
			}
			assert.Zero(t, flags)
			_, socket := conn.open("f")
			assert.NoError(t, unix.Close(socket))
		})
	}
}

// TestConnectionThatEnds closes a connection in the middle of a request. The call must not be made, and the record
// locks of the client must be released.
func TestConnectionThatEnds(t *testing.T) {
	p := newPartition(t).process(t)
	mine := file(t, p, "f", create)
	c := p.client(t)
	h, socket := c.open("f")
	defer unix.Close(socket)
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	raw := string(bytesOf(&lock))
	n, body := c.call(request(callLock, []int64{int64(h), 4711, unix.F_SETLK, int64(len(raw))}, raw))
	require.Zero(t, n)
	require.Len(t, body, len(raw))
	assert.Equal(t, syscall.EAGAIN, p.Lock(mine, 42, unix.F_SETLK, bytesOf(&unix.Flock_t{Type: unix.F_WRLCK})))
	whole := request(callWrite, []int64{int64(h), NoLimit}, "content")
	c.send(whole[:len(whole)-1])
	c.close()
	assert.NoError(t, p.Lock(mine, 42, unix.F_SETLK, bytesOf(&unix.Flock_t{Type: unix.F_WRLCK})))
	assert.Zero(t, size(t, p, mine))
}

// TestMessage checks that a request is decoded as it was encoded.
func TestMessage(t *testing.T) {
	b := request(callWritev, []int64{7, -1, 0}, "data")
	var m message
	in := bufio.NewReader(bytes.NewReader(append(b, b...)))
	for range 2 {
		require.NoError(t, m.receive(in))
		assert.EqualValues(t, callWritev, m.call)
		assert.EqualValues(t, 7, m.handle())
		assert.Equal(t, "data", string(m.data()))
		assert.EqualValues(t, -1, m.number())
		assert.Zero(t, m.int())
		assert.True(t, m.complete())
	}
	assert.ErrorIs(t, m.receive(in), io.EOF)
	for n := 1; n < len(b); n++ {
		assert.Error(t, m.receive(bytes.NewReader(b[:n])), n)
	}
	for range 10 {
		m.number()
	}
	assert.False(t, m.complete(), "there are six numbers")
}

// structStat is the size of a struct stat.
const structStat = int64(unsafe.Sizeof(syscall.Stat_t{}))

// TestFinishClosesConnections checks that a process which has finished reads no request any more. It would end before it has replied,
// and the other process could not know whether the call was made.
func TestFinishClosesConnections(t *testing.T) {
	p := newPartition(t).process(t)
	number, err := p.Serve()
	require.NoError(t, err)
	clients := []*client{p.client(t), connect(t, uint64(number)), connect(t, uint64(number))}
	stat := request(callAccess, []int64{0, 0, 0}, ".")
	for _, c := range clients[:2] { // the third one has not sent a request yet
		n, _ := c.call(stat)
		require.Zero(t, n)
	}
	require.NoError(t, p.Finish())
	assert.Zero(t, p.server.connections.Load())
	for _, c := range clients {
		c.send(stat)
		n, _, err := unix.Recvfrom(c.fd, make([]byte, 1), 0)
		if err != unix.ECONNRESET { // it was not accepted
			assert.NoError(t, err)
			assert.Zero(t, n, "it is closed")
		}
	}
}

// TestForkDuringFinish checks that Finish returns also if another thread forks first while the process ends.
func TestForkDuringFinish(t *testing.T) {
	p := newPartition(t).process(t)
	require.NoError(t, p.finish())
	_, err := p.Serve()
	require.NoError(t, err)
	require.NoError(t, p.Finish())
}
