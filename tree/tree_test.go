package tree

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/posixshim"
	"nvmecr/tree/wire"
)

// TestOneFile checks that data of one process is visible after its close or sync to others that open or sync
// afterwards.
func TestOneFile(t *testing.T) {
	r := newRig(t, 2)
	a, b, script := r.join(0), r.join(1), r.join(wire.NoPartition)
	a.write("/f", "hello world")
	for _, p := range []*rank{a, b, script} {
		assert.Equal(t, "hello world", p.read("/f"))
	}
	require.Len(t, a.shards(), 1)

	fa, fb := a.open("/f", unix.O_RDWR), b.open("/f", unix.O_RDWR)
	put(t, fb, 6, "there")
	assert.Equal(t, "hello world", get(t, fa))
	assert.Equal(t, "hello there", get(t, fb))
	require.NoError(t, fb.Sync())
	assert.Equal(t, "hello world", get(t, fa), "the map is that of the open")
	require.NoError(t, fa.Sync())
	assert.Equal(t, "hello there", get(t, fa))

	put(t, fa, 0, "HELLO") // in its own shard
	require.NoError(t, fa.Close())
	put(t, fb, 20, "end")
	require.NoError(t, fb.Close())
	for _, p := range []*rank{a, b, script} {
		assert.Equal(t, "HELLO there\x00\x00\x00\x00\x00\x00\x00\x00\x00end", p.read("/f"))
	}

	script.write("/f", "cut")
	for _, p := range []*rank{a, b, script} {
		assert.Equal(t, "cut", p.read("/f"))
	}
	assert.Empty(t, a.shards(), "what is mapped no more is removed")
}

// TestInTurn checks that of processes that write to the same bytes in turn the last one wins, if each publishes before the next one writes,
// whoever closes the file last. A process that refreshes sees what others have published.
func TestInTurn(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	fa := a.open("/f", unix.O_CREAT|unix.O_RDWR)
	fb := b.open("/f", unix.O_RDWR)
	put(t, fa, 0, "zeros ")
	require.NoError(t, a.Publish())
	require.NoError(t, b.Refresh())
	assert.Equal(t, "zeros ", get(t, fb))
	put(t, fb, 2, "two")
	require.NoError(t, b.Publish())
	require.NoError(t, b.Publish(), "there is nothing to publish")
	require.NoError(t, a.Refresh())
	assert.Equal(t, "zetwo ", get(t, fa))
	require.NoError(t, fb.Close())
	require.NoError(t, fa.Close())
	assert.Equal(t, "zetwo ", b.read("/f"))
}

// TestTwoDescriptors: two descriptors of a process see each other's writes at once.
func TestTwoDescriptors(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	first, second := p.open("/f", unix.O_CREAT|unix.O_RDWR), p.open("/f", unix.O_RDWR)
	put(t, first, 0, "one two")
	assert.Equal(t, "one two", get(t, second))
	put(t, second, 4, "TWO")
	assert.Equal(t, "one TWO", get(t, first))
	a, err := p.Stat(root, "/f", true)
	require.NoError(t, err)
	assert.EqualValues(t, 7, a.Size, "by its path, too")
	require.NoError(t, first.Close())
	put(t, second, 7, "!")
	assert.Equal(t, "one TWO!", get(t, second))

	// Truncating a file by its path also discards unpublished data.
	third := p.open("/f", unix.O_RDWR|unix.O_TRUNC)
	assert.Equal(t, "", get(t, second))
	put(t, third, 2, "x")
	assert.Equal(t, "\x00\x00x", get(t, second))
	require.NoError(t, p.Truncate(root, "/f", 1))
	assert.Equal(t, "\x00", get(t, second))
	require.NoError(t, p.Truncate(root, "/f", 5))
	assert.Equal(t, "\x00\x00\x00\x00\x00", get(t, third))
	require.NoError(t, second.Close())
	require.NoError(t, third.Close())
	assert.ErrorIs(t, third.Close(), syscall.EBADF)
}

// TestOthers checks that data of others is read from mounts that are not older than the layout.
func TestOthers(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	fa, fb := a.open("/f", unix.O_CREAT|unix.O_RDWR), b.open("/f", unix.O_RDWR)
	for _, text := range []string{"one", "two and more", "END"} {
		put(t, fb, 0, text)
		require.NoError(t, fb.Sync())
		require.NoError(t, fa.Sync())
		assert.Equal(t, text, get(t, fa)[:len(text)])
		looks := a.looks.looks
		assert.Equal(t, text, get(t, fa)[:len(text)])
		assert.Equal(t, looks, a.looks.looks, "until the next sync there is no need to look")
	}
}

// allocations returns the numbers of allocations of a write and of a read, including the layers below.
func allocations(t *testing.T, f vfs.File) (write, read float64) {
	bufs := [][]byte{make([]byte, 4096)}
	off := int64(0)
	write = testing.AllocsPerRun(100, func() {
		if n, err := f.WriteAt(bufs, off); n != 4096 || err != nil {
			t.Fatal(n, err)
		}
		off += 4096
	})
	read = testing.AllocsPerRun(100, func() {
		off -= 4096
		if n, err := f.ReadAt(bufs, off); n != 4096 || err != nil {
			t.Fatal(n, err)
		}
	})
	return write, read
}

// TestOwnBytes checks that a process writes and reads its own data without messages and allocations, except those of
// the test's device.
func TestOwnBytes(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	shard, err := p.own.Open(root, "/as below", unix.O_CREAT|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	below, belowRead := allocations(t, shard)
	require.NoError(t, shard.Close())

	f := p.open("/f", unix.O_CREAT|unix.O_RDWR)
	put(t, f, 0, "it has a shard")
	asked := p.asked.Load()
	write, read := allocations(t, f)
	assert.Equal(t, asked, p.asked.Load())
	if !raceEnabled {
		assert.Equal(t, below, write)
		assert.Equal(t, belowRead, read)
	}
	require.NoError(t, f.Close())

	f = p.open("/f", unix.O_RDWR)
	asked = p.asked.Load()
	_, err = f.ReadAt([][]byte{make([]byte, 4096)}, 4096)
	require.NoError(t, err)
	assert.Equal(t, asked, p.asked.Load(), "the open has told the map")
	require.NoError(t, f.Close())
	assert.Equal(t, asked+1, p.asked.Load(), "a close is one message")
}

// TestOneMessageForAWrite checks that a process without a partition sends a write of several buffers in one message,
// so that the write is atomic.
func TestOneMessageForAWrite(t *testing.T) {
	p := newRig(t, 0).join(wire.NoPartition)
	f := p.open("/f", unix.O_CREAT|unix.O_RDWR)
	asked := p.asked.Load()
	n, err := f.WriteAt([][]byte{[]byte("some "), nil, []byte("buffers, "), []byte("one write")}, 0)
	require.NoError(t, err)
	assert.Equal(t, 23, n)
	assert.Equal(t, asked+1, p.asked.Load())
	require.NoError(t, f.Close())
	assert.Equal(t, "some buffers, one write", p.read("/f"))
}

// TestManyRanges tests a file with more ranges than fit into an answer to open, or into a publication.
func TestManyRanges(t *testing.T) {
	r := newRig(t, 2)
	ranks := []*rank{r.join(0), r.join(1)}
	var files []vfs.File
	for _, p := range ranks {
		p.ranges = 100
		files = append(files, p.open("/f", unix.O_CREAT|unix.O_RDWR))
	}
	want := make([]byte, 0, 3*2500)
	for i := range int64(2500) {
		text := fmt.Sprintf("%03d", i%1000)
		put(t, files[i%2], 3*i, text)
		want = append(want, text...)
	}
	for _, f := range files {
		require.NoError(t, f.Sync())
	}
	for _, p := range ranks {
		assert.Equal(t, string(want), p.read("/f"))
	}
	for i, f := range files {
		put(t, f, int64(len(want)+i), "!")
		require.NoError(t, f.Close())
	}
	assert.Equal(t, string(want)+"!!", ranks[0].read("/f"))
}

// TestAppend checks that no append of several processes is lost.
func TestAppend(t *testing.T) {
	r := newRig(t, 2)
	a, b, script := r.join(0), r.join(1), r.join(wire.NoPartition)
	files := []vfs.File{
		a.open("/f", unix.O_CREAT|unix.O_RDWR|unix.O_APPEND), b.open("/f", unix.O_WRONLY|unix.O_APPEND), script.open("/f", unix.O_WRONLY|unix.O_APPEND),
	}
	add := func(f vfs.File, text string, limit int64) int64 {
		n, end, err := f.AppendBelow([][]byte{[]byte(text)}, limit)
		require.NoError(t, err)
		require.LessOrEqual(t, n, len(text))
		return end
	}
	for _, text := range []string{"aa", "bbb", "c"} {
		for _, f := range files {
			add(f, text, posixshim.NoLimit)
		}
	}
	// A process appends behind its own data beyond the end.
	put(t, files[0], 20, "x")
	assert.EqualValues(t, 23, add(files[0], "yy", posixshim.NoLimit))
	assert.EqualValues(t, 25, add(files[0], "zzzz", 25))
	_, _, err := files[0].AppendBelow([][]byte{[]byte("!")}, 25)
	assert.ErrorIs(t, err, microfs.ErrFileTooLarge)
	for _, f := range files {
		require.NoError(t, f.Close())
	}
	for _, p := range []*rank{a, b, script} {
		assert.Equal(t, "aaaaaabbbbbbbbbccc\x00\x00xyyzz", p.read("/f"))
	}
}

// TestAppendBehindCut checks that space reserved before another process truncates the file does not determine the end
// of the file afterwards.
func TestAppendBehindCut(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	f := a.open("/f", unix.O_CREAT|unix.O_RDWR)
	_, _, err := f.AppendBelow([][]byte{[]byte("a long text")}, posixshim.NoLimit)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, b.Truncate(root, "/f", 0))
	require.NoError(t, f.Sync())
	put(t, f, 0, "new")
	_, end, err := f.AppendBelow([][]byte{[]byte("er")}, posixshim.NoLimit)
	require.NoError(t, err)
	assert.EqualValues(t, 5, end)
	require.NoError(t, f.Close())
	assert.Equal(t, "newer", b.read("/f"))
}

// TestScriptAppendsBehindCut checks that an append of a process that is not a rank is at the end of the file, also
// after another process has truncated it.
func TestScriptAppendsBehindCut(t *testing.T) {
	r := newRig(t, 1)
	a, b := r.join(wire.NoPartition), r.join(0)
	f := a.open("/log", unix.O_CREAT|unix.O_RDWR)
	_, _, err := f.AppendBelow([][]byte{[]byte("a long line")}, posixshim.NoLimit)
	require.NoError(t, err)
	require.NoError(t, b.Truncate(root, "/log", 0))
	_, end, err := f.AppendBelow([][]byte{[]byte("x")}, posixshim.NoLimit)
	require.NoError(t, err)
	assert.EqualValues(t, 1, end)
	require.NoError(t, f.Close())
	assert.Equal(t, "x", b.read("/log"))
}

// TestRewrite checks that a complete file is incomplete from the first write in place until it is closed.
func TestRewrite(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	complete := func() bool {
		at, err := b.Stat(root, "/f", true)
		require.NoError(t, err)
		return at.Closed
	}
	a.write("/f", "hello")
	require.True(t, complete())
	f := a.open("/f", unix.O_RDWR)
	assert.True(t, complete(), "nothing is written")
	require.NoError(t, f.Close())
	assert.True(t, complete())
	f = a.open("/f", unix.O_RDWR)
	put(t, f, 0, "H")
	assert.False(t, complete())
	asked := a.asked.Load()
	put(t, f, 1, "E")
	assert.Equal(t, asked, a.asked.Load(), "the first write says so")
	require.NoError(t, f.Close())
	assert.True(t, complete())
	assert.Equal(t, "HEllo", b.read("/f"))
	f = a.open("/f", unix.O_RDWR)
	put(t, f, 2, "LLO, and more")
	a.kill()
	r.stop()
	r.start()
	r.index.Adopt(0)
	c := r.join(1)
	assert.Equal(t, "HELLO, and more", c.read("/f"))
	at, err := c.Stat(root, "/f", true)
	require.NoError(t, err)
	assert.False(t, at.Closed, "its writer was killed")
}

// TestDeath checks that unpublished data of a killed process is in the file, except where others have written.
func TestDeath(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	a.write("/f", "published")
	fa, fb := a.open("/f", unix.O_RDWR), b.open("/f", unix.O_RDWR)
	put(t, fa, 0, "PUBL")
	require.NoError(t, fa.Truncate(4)) // later writes go to another shard
	put(t, fa, 4, "lost not")
	put(t, fb, 6, "BB")
	require.NoError(t, fb.Sync())
	a.kill()
	assert.Equal(t, "PUBLloBB not", b.read("/f"))

	a = r.join(0)
	assert.Equal(t, "PUBLloBB not", a.read("/f"))
	require.NoError(t, fb.Close())
}

// TestPowerLoss checks that data written by one descriptor is durable when another descriptor of the process is
// closed.
func TestPowerLoss(t *testing.T) {
	for lost := range uint64(8) {
		r := newRig(t, 1)
		r.cache, r.lost = true, lost
		p := r.join(0)
		f, other := p.open("/f", unix.O_CREAT|unix.O_RDWR), p.open("/f", unix.O_RDWR)
		put(t, f, 0, "hello")
		require.NoError(t, other.Close())
		put(t, f, 100, "and this may be lost")
		p.kill()
		assert.Equal(t, "hello", r.join(wire.NoPartition).read("/f")[:5])
	}
}

// TestFailedClose checks that data which the last writer could not save is lost, and that readers continue.
func TestFailedClose(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	p.write("/f", "hello")
	f, reader := p.open("/f", unix.O_RDWR), p.open("/f", unix.O_RDONLY)
	put(t, f, 0, "HELLO, and more")
	made := p.open("/new", unix.O_CREAT|unix.O_RDWR)
	put(t, made, 0, "lost")
	require.NoError(t, p.dev.Crash(1))
	assert.Error(t, f.Close())
	a, err := reader.Stat()
	require.NoError(t, err)
	assert.EqualValues(t, 5, a.Size)
	assert.Error(t, made.Close())
	a, err = p.Stat(root, "/new", true)
	require.NoError(t, err)
	assert.False(t, a.Closed, "a file whose writer could not close it is not complete")
	require.NoError(t, reader.Close())
}

// TestNoIndex checks that open files can be read and written without the index, and that calls which need the index
// fail.
func TestNoIndex(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	f := p.open("/f", unix.O_CREAT|unix.O_RDWR)
	put(t, f, 0, "hello")
	_ = p.stream.Close()
	put(t, f, 5, " world")
	assert.Equal(t, "hello world", get(t, f))
	for range 2 {
		assert.ErrorIs(t, f.Sync(), wire.ErrGone)
	}
	assert.Equal(t, "hello world", get(t, f))
	assert.ErrorIs(t, f.Close(), wire.ErrGone)
	assert.NoError(t, p.FS.Close(), "there is nothing that it should be told")
}

// TestLostBytes checks that missing data is EIO, and that the message names its owner.
func TestLostBytes(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	b.write("/gone", "hello")
	b.write("/f", "hello")
	shards := b.shards()
	require.NoError(t, b.own.Unlink(root, shards[len(shards)-1]))
	f := a.open("/f", unix.O_RDWR)
	_, err := f.ReadAt([][]byte{make([]byte, 9)}, 1)
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, err, "bytes 1 to 4 of /f are in the partition of rank 1, and cannot be read there: no such file")
	put(t, f, 0, "HE")
	buf := make([]byte, 2)
	n, err := f.ReadAt([][]byte{buf}, 0)
	assert.NoError(t, err)
	assert.Equal(t, "HE", string(buf[:n]), "what is there can be read")
	require.NoError(t, f.Close())

	r.gone = map[uint32]bool{1: true}
	f = a.open("/gone", unix.O_RDONLY)
	_, err = f.ReadAt([][]byte{make([]byte, 9)}, 0)
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, err, "rank 1, and cannot be read there: target 10.0.0.7:4420 cannot be reached")
	require.NoError(t, f.Close())
}

// TestRetry checks that data missing from a mount is looked for in newer mounts, a limited number of times.
func TestRetry(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	b.write("/f", "short")
	f, fb := a.open("/f", unix.O_RDONLY), b.open("/f", unix.O_WRONLY)
	assert.Equal(t, "short", get(t, f))
	put(t, fb, 5, " and more")
	require.NoError(t, fb.Sync())
	require.NoError(t, f.Sync())
	a.looks.late = 2
	assert.Equal(t, "short and more", get(t, f))
	put(t, fb, 14, "!")
	require.NoError(t, fb.Close())
	require.NoError(t, f.Sync())
	a.looks.late = 1000
	_, err := f.ReadAt([][]byte{make([]byte, 100)}, 0)
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, err, "rank 1, and cannot be read there: the file there is too short")
	assert.Equal(t, 1000-tries, a.looks.late)
	require.NoError(t, f.Close())
}

// TestTimes checks that an explicitly set time is not replaced by the time of an earlier write.
func TestTimes(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	then := time.Unix(1e9, 0)
	mtime := func() time.Time {
		a, err := p.Stat(root, "/f", true)
		require.NoError(t, err)
		return a.Mtime
	}
	f := p.open("/f", unix.O_CREAT|unix.O_RDWR)
	for name, set := range map[string]func() error{
		"by the file": func() error { return f.SetAttr(microfs.SetAttr{Mtime: &then}) },
		"by its path": func() error { return p.SetAttr(root, "/f", true, microfs.SetAttr{Mtime: &then}) },
	} {
		before := time.Now()
		put(t, f, 0, "hello")
		assert.False(t, mtime().Before(before), name)
		require.NoError(t, set())
		assert.Equal(t, then, mtime(), name)
		require.NoError(t, f.Sync())
		assert.Equal(t, then, mtime(), name)
	}
	before := time.Now()
	put(t, f, 0, "h")
	require.NoError(t, f.Close())
	assert.False(t, mtime().Before(before))
}

// TestNoName checks that processes can read and write an unlinked file while they have it open, and that nothing is
// left of it afterwards.
func TestNoName(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	fa, fb := a.open("/f", unix.O_CREAT|unix.O_RDWR), b.open("/f", unix.O_RDWR)
	put(t, fa, 0, "hello")
	require.NoError(t, fa.Sync())
	require.NoError(t, b.Unlink(root, "/f"))
	put(t, fb, 5, "!")
	require.NoError(t, fb.Sync())
	require.NoError(t, fa.Sync())
	assert.Equal(t, "hello!", get(t, fa))
	assert.Equal(t, "hello!", get(t, fb))
	require.NoError(t, fa.Close())
	require.NoError(t, fb.Close())
	for _, p := range []*rank{a, b} {
		require.NoError(t, p.Sync())
		assert.Empty(t, p.shards())
	}
	assert.Empty(t, a.FS.open())
}

// TestNothingWritten checks that a file opened for writing, but not written, has no shard.
func TestNothingWritten(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	p.write("/empty", "")
	f := p.open("/f", unix.O_CREAT|unix.O_RDWR)
	require.NoError(t, f.Truncate(10))
	require.NoError(t, f.Allocate(0, 20, false))
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	assert.Empty(t, p.shards())
	assert.Equal(t, strings.Repeat("\x00", 20), p.read("/f"))
}

// TestVacate checks that a process publishes all data before it leaves its partition to another one, and that it
// takes the partition back.
func TestVacate(t *testing.T) {
	r := newRig(t, 1)
	p, script := r.join(0), r.join(wire.NoPartition)
	f := p.open("/f", unix.O_CREAT|unix.O_RDWR)
	put(t, f, 0, "one")
	require.NoError(t, p.Vacate())
	assert.Equal(t, "one", script.read("/f"))
	put(t, f, 3, " two")
	require.NoError(t, f.Close())
	assert.Equal(t, "one two", script.read("/f"))
}
