package posixshim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// partition is a formatted partition in memory. It records how it was opened.
type partition struct {
	dev    nvmf.Device
	seg    microfs.Segment
	opened []string // "read" or "write"
	refuse error    // the error of the next open
	logged []string
}

func newPartition(t testing.TB) *partition {
	const size = 64 << 20
	dev, err := memdev.New(size, 4096, memdev.Options{})
	require.NoError(t, err)
	p := &partition{dev: dev, seg: microfs.Segment{Length: size}}
	require.NoError(t, microfs.Format(context.Background(), dev, p.seg, microfs.FormatOptions{Generation: 1, Size: 1}))
	return p
}

func (p *partition) open(write bool) (*vfs.Mount, error) {
	kind := "read"
	if write {
		kind = "write"
	}
	p.opened = append(p.opened, kind)
	if p.refuse != nil {
		return nil, p.refuse
	}
	fs, err := microfs.Mount(context.Background(), p.dev, p.seg, microfs.Options{Generation: 1, ReadOnly: !write, MountPoint: "/nvmecr"})
	if err != nil {
		return nil, err
	}
	current := func() bool { return fs.Current(func(nvmf.Queue) bool { return true }) }
	return &vfs.Mount{FS: vfs.Microfs(fs), Writable: write, Current: current, Close: fs.Unmount}, nil
}

func (p *partition) process(t testing.TB) *Process {
	var mu sync.Mutex // goroutines of the process also log
	proc := New(p.open, func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		p.logged = append(p.logged, fmt.Sprintf(format, args...))
	})
	t.Cleanup(func() { assert.NoError(t, proc.Finish()) })
	return proc
}

func at(path string) PathAt { return PathAt{Path: path} }

// file opens a file. The open must not fail.
func file(t testing.TB, p *Process, path string, flags int) Handle {
	t.Helper()
	h, err := p.Open(at(path), flags, 0o600)
	require.NoError(t, err)
	return Handle(h)
}

const create = syscall.O_RDWR | syscall.O_CREAT

// size returns the size of an open file.
func size(t testing.TB, p *Process, h Handle) int64 {
	t.Helper()
	a, err := p.FileAttr(h)
	require.NoError(t, err)
	return a.Size
}

func offset(t testing.TB, p *Process, h Handle) int {
	t.Helper()
	n, err := p.Seek(h, 0, io.SeekCurrent)
	require.NoError(t, err)
	return n
}

// TestOffsetIsSharedByDescriptorsOfOneFile checks that the offset belongs to the open file, which exists until its
// last descriptor is closed.
func TestOffsetIsSharedByDescriptorsOfOneFile(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	require.NoError(t, p.Retain(h))
	n, err := p.Write(h, []byte("hello"), NoLimit)
	require.NoError(t, err)
	assert.Equal(t, 5, n)
	assert.Equal(t, 5, offset(t, p, h))

	require.NoError(t, p.Release(h))
	assert.Equal(t, 5, offset(t, p, h), "one descriptor is left")
	require.NoError(t, p.Release(h))
	_, err = p.Seek(h, 0, io.SeekCurrent)
	assert.Equal(t, syscall.EBADF, err)
	assert.Equal(t, syscall.EBADF, p.Retain(h))
	assert.Equal(t, syscall.EBADF, p.Release(h))
}

// TestHandleOfAClosedFileIsNeverAnother checks that the handle of a closed file is not used again and fails with
// EBADF.
func TestHandleOfAClosedFileIsNeverAnother(t *testing.T) {
	p := newPartition(t).process(t)
	seen := map[Handle]bool{}
	for range 100 {
		h := file(t, p, "f", create)
		require.False(t, seen[h], "handle %#x came back", h)
		for old := range seen {
			_, err := p.Read(old, make([]byte, 1))
			require.Equal(t, syscall.EBADF, err, "while another file has its place")
		}
		seen[h] = true
		require.NoError(t, p.Release(h))
		for old := range seen {
			_, err := p.Read(old, make([]byte, 1))
			require.Equal(t, syscall.EBADF, err)
		}
	}
}

// TestModesOfAccess checks which calls each access mode allows.
func TestModesOfAccess(t *testing.T) {
	p := newPartition(t).process(t)
	w := file(t, p, "f", create)
	_, err := p.Write(w, []byte("content"), NoLimit)
	require.NoError(t, err)
	buf := make([]byte, 10)
	for _, c := range []struct {
		name                  string
		flags                 int
		read, write, truncate error
	}{
		{"read only", syscall.O_RDONLY, nil, syscall.EBADF, syscall.EINVAL},
		{"write only", syscall.O_WRONLY, syscall.EBADF, nil, nil},
		{"both", syscall.O_RDWR, nil, nil, nil},
		{"neither, which is Linux's own", syscall.O_ACCMODE, syscall.EBADF, syscall.EBADF, syscall.EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := file(t, p, "f", c.flags)
			_, err := p.Pread(h, buf, 0)
			assert.Equal(t, c.read, err)
			_, err = p.Pwrite(h, []byte("C"), 0, NoLimit)
			assert.Equal(t, c.write, err)
			assert.Equal(t, c.truncate, p.Ftruncate(h, 7, NoLimit))
			require.NoError(t, p.Release(h))
		})
	}
	_, err = p.Open(at(""), create, 0)
	assert.Equal(t, syscall.ENOENT, err)
}

// TestAppendGoesToTheEnd checks that O_APPEND writes at the current end of the file, and that fcntl reads and changes
// the flag.
func TestAppendGoesToTheEnd(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create|syscall.O_APPEND)
	other := file(t, p, "f", syscall.O_RDWR)
	for _, s := range []string{"one", "two"} {
		_, err := p.Write(h, []byte(s), NoLimit)
		require.NoError(t, err)
		_, err = p.Pwrite(other, []byte("|"), size(t, p, other), NoLimit)
		require.NoError(t, err)
	}
	assert.Equal(t, 7, offset(t, p, h), "behind what it wrote last")
	buf := make([]byte, 20)
	n, err := p.Pread(other, buf, 0)
	require.NoError(t, err)
	assert.Equal(t, "one|two|", string(buf[:n]))

	flags, err := p.Getfl(h)
	require.NoError(t, err)
	assert.Equal(t, syscall.O_RDWR|syscall.O_APPEND, flags&(syscall.O_ACCMODE|syscall.O_APPEND|syscall.O_CREAT))
	require.NoError(t, p.Setfl(h, 0))
	_, err = p.Pwrite(h, []byte("1"), 0, NoLimit)
	require.NoError(t, err)
	flags, err = p.Getfl(h)
	require.NoError(t, err)
	assert.Equal(t, syscall.O_RDWR, flags&(syscall.O_ACCMODE|syscall.O_APPEND), "F_SETFL leaves the access mode")
}

// TestSeek checks the results of lseek.
func TestSeek(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	require.NoError(t, p.Ftruncate(h, 100, NoLimit))
	for _, c := range []struct {
		name   string
		off    int64
		whence int
		want   int
		err    error
	}{
		{"from the start", 10, io.SeekStart, 10, nil},
		{"from here", 5, io.SeekCurrent, 15, nil},
		{"from the end", -1, io.SeekEnd, 99, nil},
		{"behind the end", 1000, io.SeekEnd, 1100, nil},
		{"before the start", -1, io.SeekStart, 0, syscall.EINVAL},
		{"too far", 1<<63 - 1, io.SeekCurrent, 0, syscall.EINVAL},
		{"unknown", 0, 17, 0, syscall.EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, err := p.Seek(h, c.off, c.whence)
			assert.Equal(t, c.err, err)
			assert.Equal(t, c.want, n)
		})
	}
	assert.Equal(t, 1100, offset(t, p, h), "a seek that failed changes nothing")
}

// iovec returns the vector of some buffers.
func iovec(bufs ...[]byte) []syscall.Iovec {
	var iov []syscall.Iovec
	for _, b := range bufs {
		v := syscall.Iovec{Len: uint64(len(b))}
		if len(b) > 0 {
			v.Base = &b[0]
		}
		iov = append(iov, v)
	}
	return iov
}

// TestVectors checks readv and writev.
func TestVectors(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	n, err := p.Writev(h, iovec([]byte("ab"), nil, []byte("cde")), -1, NoLimit)
	require.NoError(t, err)
	assert.Equal(t, 5, n)
	a, b := make([]byte, 2), make([]byte, 10)
	n, err = p.Readv(h, iovec(a, b), 1)
	require.NoError(t, err)
	assert.Equal(t, "bc de", string(a)+" "+string(b[:n-2]))
	assert.Equal(t, 5, offset(t, p, h))
	_, err = p.Writev(h, []syscall.Iovec{{Base: &a[0], Len: 1 << 63}}, -1, NoLimit)
	assert.Equal(t, syscall.EINVAL, err)
}

// names reads a directory through Getdents with a buffer of the given size.
func names(t *testing.T, p *Process, h Handle, size int) []string {
	t.Helper()
	var out []string
	buf := make([]byte, size)
	for {
		n, err := p.Getdents(h, buf)
		require.NoError(t, err)
		if n == 0 {
			return out
		}
		for b := buf[:n]; len(b) > 0; {
			length := binary.NativeEndian.Uint16(b[16:])
			require.Zero(t, length%8)
			name, _, _ := strings.Cut(string(b[direntName:length]), "\x00")
			out = append(out, name)
			b = b[length:]
		}
	}
}

// TestDirectories checks getdents, seeks in a directory, and errors of calls on directories.
func TestDirectories(t *testing.T) {
	p := newPartition(t).process(t)
	require.NoError(t, p.Mkdir(at("d"), 0o700))
	want := []string{".", ".."}
	for i := range 2*listBatch + 5 {
		name := fmt.Sprintf("%05d", i)
		require.NoError(t, p.Release(file(t, p, "d/"+name, create)))
		want = append(want, name)
	}
	h := file(t, p, "d", syscall.O_RDONLY|syscall.O_DIRECTORY)
	assert.Equal(t, want, names(t, p, h, 1000))
	assert.Empty(t, names(t, p, h, 1000), "at the end")

	_, err := p.Seek(h, 7, io.SeekStart)
	require.NoError(t, err)
	assert.Equal(t, want[7:], names(t, p, h, 65536))

	require.NoError(t, p.Unlink(PathAt{h, "00000"}))
	_, err = p.Seek(h, 0, io.SeekStart)
	require.NoError(t, err)
	assert.Equal(t, append([]string{".", ".."}, want[3:]...), names(t, p, h, 4096), "rewinding looks again")

	_, err = p.Seek(h, 0, io.SeekStart)
	require.NoError(t, err)
	_, err = p.Getdents(h, make([]byte, 8))
	assert.Equal(t, syscall.EINVAL, err, "not one fits")
	_, err = p.Read(h, make([]byte, 8))
	assert.Equal(t, syscall.EISDIR, err)
	f := file(t, p, "d/00001", syscall.O_RDONLY)
	_, err = p.Getdents(f, make([]byte, 100))
	assert.Equal(t, syscall.ENOTDIR, err)
	_, err = p.Open(PathAt{f, "x"}, create, 0)
	assert.Equal(t, syscall.ENOTDIR, err)

	buf := make([]byte, 10)
	n, err := p.Fpath(h, buf)
	require.NoError(t, err)
	assert.Equal(t, "/d", string(buf[:n]))
}

// TestFailure checks the errors of calls if the partition cannot be opened, after a failed MPI_Init, and after the
// end of the process.
func TestFailure(t *testing.T) {
	t.Run("open", func(t *testing.T) {
		part := newPartition(t)
		p := part.process(t)
		part.refuse = fmt.Errorf("target file:x: %w", syscall.ENODEV)
		err := p.Mkdir(at("d"), 0o700)
		assert.Equal(t, syscall.ENODEV, p.Errno(err))
		assert.Equal(t, syscall.ENODEV, p.Errno(p.Mkdir(at("d"), 0o700)))
		assert.Equal(t, []string{"target file:x: no such device"}, part.logged, "said once")
		part.refuse = nil
		assert.NoError(t, p.Mkdir(at("d"), 0o700), "tried again")
	})
	for _, errno := range []syscall.Errno{syscall.ENOENT, syscall.EACCES} {
		t.Run("a file of ours, "+errno.Error(), func(t *testing.T) {
			part := newPartition(t)
			p := part.process(t)
			part.refuse = &os.PathError{Op: "open", Path: "host.key", Err: errno}
			_, err := p.Open(at("checkpoint"), syscall.O_RDONLY, 0)
			assert.Equal(t, syscall.EIO, p.Errno(err), "as if there were no checkpoint")
			require.Len(t, part.logged, 1)
			assert.Contains(t, part.logged[0], "host.key")
		})
	}
	t.Run("MPI_Init", func(t *testing.T) {
		p := newPartition(t).process(t)
		p.Fail(syscall.ECONNREFUSED)
		assert.Equal(t, syscall.ECONNREFUSED, p.Mkdir(at("d"), 0o700))
	})
	t.Run("after the end", func(t *testing.T) {
		p := newPartition(t).process(t)
		h := file(t, p, "f", create)
		require.NoError(t, p.Finish())
		_, err := p.Open(at("g"), create, 0o600)
		assert.Equal(t, syscall.EIO, Errno(err))
		_, err = p.Write(h, []byte("x"), NoLimit)
		assert.Equal(t, syscall.EIO, Errno(err))
		assert.NoError(t, p.Release(h))
	})
}

// TestErrno checks the errno for errors of the packages below.
func TestErrno(t *testing.T) {
	for _, c := range []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{syscall.ENOENT, syscall.ENOENT},
		{fmt.Errorf("a: %w", fmt.Errorf("b: %w", syscall.ENOSPC)), syscall.ENOSPC},
		{&microfs.EscapeError{Path: "/etc"}, syscall.EXDEV},
		{&nvmf.StatusError{SCT: 0, SC: 0x81}, syscall.ENOSPC},
		{nvmf.ErrConnectionLost, syscall.EIO},
		{errors.New("anything"), syscall.EIO},
		{errors.Join(errors.New("anything"), syscall.EROFS), syscall.EROFS},
	} {
		assert.Equal(t, c.want, Errno(c.err), "%v", c.err)
	}
}

// times returns times in the memory layout that utimensat expects.
func times(t ...int64) (b []byte) {
	for _, v := range t {
		b = binary.NativeEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// TestAttributes checks the calls that change and return attributes.
func TestAttributes(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	before := time.Now().Unix()
	require.NoError(t, p.Fchmod(h, syscall.S_IFREG|0o640))
	require.NoError(t, p.Futimes(h, times(100, 7, 0, unix.UTIME_NOW), 1))
	a, err := p.Attr(at("f"), 0)
	require.NoError(t, err)
	assert.Equal(t, uint32(syscall.S_IFREG|0o640), a.Mode)
	assert.True(t, time.Unix(100, 7).Equal(a.Atime), a.Atime)
	assert.GreaterOrEqual(t, a.Mtime.Unix(), before)
	for _, c := range []struct {
		name  string
		times []byte
		unit  int
		want  error
	}{
		{"nanoseconds", times(0, unix.UTIME_OMIT, 200, 0), 1, nil},
		{"nothing", times(0, unix.UTIME_OMIT, 0, unix.UTIME_OMIT), 1, nil},
		{"too many nanoseconds", times(1, 0, 1, 1e9), 1, syscall.EINVAL},
		{"too many microseconds", times(1, 1e6, 1, 0), 1000, syscall.EINVAL},
		{"negative", times(1, -1, 1, 0), 1000, syscall.EINVAL},
		{"cut", times(1, 0, 1), 1000, syscall.EINVAL},
	} {
		assert.Equal(t, c.want, p.Utimes(at("f"), c.times, c.unit, 0), c.name)
	}
	a, err = p.FileAttr(h)
	require.NoError(t, err)
	assert.True(t, time.Unix(200, 0).Equal(a.Mtime), a.Mtime)
	assert.True(t, time.Unix(100, 7).Equal(a.Atime), a.Atime)
	require.NoError(t, p.Utimes(at("f"), times(3, 4), 0, 0))

	var st syscall.Stat_t
	require.NoError(t, p.Stat(at("f"), 0, structure(&st)))
	assert.Equal(t, []int64{3, 4}, []int64{st.Atim.Sec, st.Mtim.Sec})
	assert.Equal(t, syscall.EINVAL, p.Stat(at("f"), 0, structure(&st)[1:]))

	space, err := p.Space()
	require.NoError(t, err)
	assert.Positive(t, space.Free)
	assert.LessOrEqual(t, space.Free, space.Blocks)
}

// TestThreads checks that appends of several threads to one file are atomic.
func TestThreads(t *testing.T) {
	p := newPartition(t).process(t)
	shared := file(t, p, "shared", create|syscall.O_APPEND)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			own := file(t, p, fmt.Sprint("own", i), create)
			block := bytes.Repeat([]byte{byte('a' + i)}, 100)
			for range 50 {
				_, err := p.Write(shared, block, NoLimit)
				assert.NoError(t, err)
				_, err = p.Write(own, block, NoLimit)
				assert.NoError(t, err)
			}
			assert.NoError(t, p.Release(own))
		})
	}
	wg.Wait()
	buf := make([]byte, 30000)
	n, err := p.Pread(shared, buf, 0)
	require.NoError(t, err)
	require.Equal(t, 4*50*100, n)
	for i := 0; i < n; i += 100 {
		require.Equal(t, 100, bytes.Count(buf[i:i+100], buf[i:i+1]), "an append was torn at %d", i)
	}
}

// became is a file system that records the argument of the last call of SetCred.
type became struct {
	vfs.FS
	cred atomic.Pointer[microfs.Cred]
}

func (b *became) SetCred(c microfs.Cred) error {
	b.cred.Store(&c)
	return b.FS.SetCred(c)
}

// TestChangesOfUser checks that the mounts have the newest credentials after two threads changed them at the same
// time.
func TestChangesOfUser(t *testing.T) {
	p := newPartition(t).process(t)
	file(t, p, "a", unix.O_CREAT|unix.O_RDWR)
	fs := &became{FS: p.mounts[0].mount.FS}
	p.mounts[0].mount.FS = fs
	var uid atomic.Uint32
	asked, hold := make(chan bool, 2), make(chan bool)
	p.Identify = func() (microfs.Cred, error) {
		c := microfs.Cred{UID: uid.Load()}
		asked <- true
		if c.UID == 0 {
			<-hold
		}
		return c, nil
	}
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- p.Credentials() }()
	<-asked
	uid.Store(1)
	go func() { second <- p.Credentials() }()
	select {
	case <-asked: // the second thread has overtaken the first
		require.NoError(t, <-second)
		close(hold)
	case <-time.After(50 * time.Millisecond):
		close(hold)
		require.NoError(t, <-second)
	}
	require.NoError(t, <-first)
	assert.Equal(t, microfs.Cred{UID: 1}, *fs.cred.Load())
}
