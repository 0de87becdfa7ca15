package posixshim

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
)

// TestWrittenPastTheShim writes data to the socket that stands for an open file. The data must be in the file before
// the next call, in order, at the shared offset.
func TestWrittenPastTheShim(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	socket, err := p.Share(h)
	require.NoError(t, err)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var want []byte
	for range 500 {
		text := bytes.Repeat([]byte{byte('a' + random.IntN(26))}, 1+random.IntN(9000))
		want = append(want, text...)
		var n int
		if random.IntN(2) == 0 {
			n, err = unix.Write(socket, text)
		} else {
			p.Drain()
			n, err = p.Write(h, text, NoLimit)
		}
		require.NoError(t, err)
		require.Equal(t, len(text), n)
	}
	p.Drain()
	got := make([]byte, len(want)+1)
	n, err := p.Pread(h, got, 0)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got[:n]))
	_, err = unix.Read(socket, got)
	assert.Equal(t, syscall.EAGAIN, err, "nobody waits for what does not come, or takes it for the end")
	require.NoError(t, p.Release(h))
	_, err = unix.Write(socket, []byte("last"))
	require.NoError(t, err)
	require.NoError(t, unix.Close(socket))
	require.NoError(t, p.releaseForPeer(h, 0), "the last descriptor")
	assert.Nil(t, p.relays.all.Load())
	h = file(t, p, "f", syscall.O_RDONLY)
	assert.EqualValues(t, len(want)+4, size(t, p, h))
	require.NoError(t, p.Release(h))
}

// TestManyWritePastTheShim checks that no data is lost if several threads write to such sockets at the same time.
func TestManyWritePastTheShim(t *testing.T) {
	p := newPartition(t).process(t)
	var handles []Handle
	var wg sync.WaitGroup
	for range 4 {
		h := file(t, p, "f", create|syscall.O_APPEND)
		socket, err := p.Share(h)
		require.NoError(t, err)
		handles = append(handles, h)
		wg.Go(func() {
			for range 200 {
				_, err := unix.Write(socket, make([]byte, 100))
				assert.NoError(t, err)
				p.Drain()
			}
			assert.NoError(t, unix.Close(socket))
		})
	}
	wg.Wait()
	p.Drain()
	assert.EqualValues(t, 4*200*100, size(t, p, handles[0]))
	for _, h := range handles {
		require.NoError(t, p.Release(h))
	}
}

// fullFile is a file on a full file system.
type fullFile struct{ vfs.File }

func (fullFile) WriteAt([][]byte, int64) (int, error) { return 0, syscall.ENOSPC }

// TestLostPastTheShim checks that one line is printed, and that the next fsync or close fails, if relayed data cannot
// be written.
func TestLostPastTheShim(t *testing.T) {
	for name, hears := range map[string]func(p *Process, h Handle) error{
		"fsync":           (*Process).Fsync,
		"close":           (*Process).Release,
		"another process": func(p *Process, h Handle) error { return p.releaseForPeer(h, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPartition(t).process(t)
			said := 0
			p.logf = func(string, ...any) { said++ }
			h := file(t, p, "f", create)
			f, err := p.files.get(h)
			require.NoError(t, err)
			f.first = fullFile{f.first}
			socket, err := p.Share(h)
			require.NoError(t, err)
			for range 2 {
				_, err = unix.Write(socket, []byte("text"))
				require.NoError(t, err)
				p.Drain()
			}
			assert.ErrorIs(t, hears(p, h), syscall.ENOSPC)
			assert.Equal(t, 1, said)
			assert.NoError(t, p.releaseForPeer(h, 0), "only once")
			require.NoError(t, unix.Close(socket))
		})
	}
}

// TestAwaitsOtherRelays checks that a process waits for relayed data of other processes before it reads the
// partition. In the tree of a job it must also wait before it opens a file.
func TestAwaitsOtherRelays(t *testing.T) {
	for _, tree := range []bool{false, true} {
		partition := newPartition(t)
		p := partition.process(t)
		h := file(t, p, "f", create)
		waited, opened := 0, 0
		reader := New(func(write bool) (*vfs.Mount, error) {
			opened = waited
			m, err := partition.open(write)
			if err == nil {
				m.Tree = tree
			}
			return m, err
		}, t.Logf)
		reader.Await = func() { waited++ }
		require.NoError(t, p.Release(h))
		require.NoError(t, p.Finish())
		_, err := reader.Attr(at("f"), 0)
		require.NoError(t, err)
		assert.Positive(t, opened, "before it opens the partition")
		before := waited
		_, err = reader.Open(at("f"), syscall.O_RDONLY, 0)
		require.NoError(t, err)
		if tree {
			assert.Greater(t, waited, before)
		}
		require.NoError(t, reader.Finish())
	}
}

// TestFinishRelayed checks that FinishRelayed writes all relayed data to the files, and closes files that no process
// has open.
func TestFinishRelayed(t *testing.T) {
	p := newPartition(t).process(t)
	var began, ended int
	p.Relaying = func(begins bool) {
		if begins {
			began++
		} else {
			ended++
		}
	}
	h := file(t, p, "f", create)
	socket, err := p.Share(h)
	require.NoError(t, err)
	require.NoError(t, p.Release(h))
	assert.Equal(t, 1, began)
	_, err = unix.Write(socket, []byte("before"))
	require.NoError(t, err)
	p.FinishRelayed()
	attr, err := p.Attr(at("f"), 0)
	require.NoError(t, err)
	assert.EqualValues(t, 6, attr.Size)
	assert.False(t, attr.Closed)
	_, err = unix.Write(socket, []byte(" the end"))
	require.NoError(t, err)
	require.NoError(t, unix.Close(socket))
	p.FinishRelayed()
	attr, err = p.Attr(at("f"), 0)
	require.NoError(t, err)
	assert.EqualValues(t, 14, attr.Size)
	assert.True(t, attr.Closed)
	assert.Equal(t, 1, ended)
}
