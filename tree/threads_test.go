package tree

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/tree/wire"
)

// TestThreads runs threads of several processes on one file, each on a part of its own: a thread reads its own data
// while others sync, truncate behind the end, open and close.
func TestThreads(t *testing.T) {
	r := newRig(t, 2)
	const part, threads, rounds = 5000, 3, 30
	processes := []*rank{r.join(0), r.join(1), r.join(wire.NoPartition)}
	end := int64(part * threads * len(processes))
	f := processes[0].open("/f", unix.O_CREAT|unix.O_RDWR)
	require.NoError(t, f.Truncate(end+10))
	var group sync.WaitGroup
	for i, p := range processes {
		shared := p.open("/f", unix.O_RDWR)
		var done sync.WaitGroup
		for k := range threads {
			done.Add(1)
			group.Go(func() {
				defer done.Done()
				work(t, p, shared, int64(i*threads+k)*part, part, rounds)
			})
		}
		group.Go(func() {
			for range rounds {
				assert.NoError(t, shared.Sync())
				_, err := shared.SeekHole(0)
				assert.NoError(t, err)
			}
			done.Wait()
			assert.NoError(t, shared.Close())
		})
	}
	for range rounds {
		assert.NoError(t, f.Punch(end, 5))
		_, err := f.Stat()
		assert.NoError(t, err)
	}
	group.Wait()
	require.NoError(t, f.Sync())
	for i := range byte(threads * len(processes)) {
		requirePart(t, f, int64(i)*part, bytes.Repeat([]byte{rounds}, part))
	}
	require.NoError(t, f.Close())
}

// work writes to a part, through a descriptor that the threads share and through its own, and reads it.
func work(t *testing.T, p *rank, shared vfs.File, off int64, n, rounds int) {
	for round := range rounds {
		data := bytes.Repeat([]byte{byte(round + 1)}, n)
		own, err := p.Open(root, "/f", unix.O_RDWR, 0)
		if !assert.NoError(t, err) {
			return
		}
		_, err = shared.WriteAt([][]byte{data[:n/2]}, off)
		assert.NoError(t, err)
		_, err = own.WriteAt([][]byte{data[n/2:]}, off+int64(n/2))
		assert.NoError(t, err)
		requirePart(t, own, off, data)
		assert.NoError(t, own.Close())
		requirePart(t, shared, off, data)
	}
}

func requirePart(t *testing.T, f vfs.File, off int64, want []byte) {
	got := make([]byte, len(want))
	n, err := f.ReadAt([][]byte{got[:7], got[7:]}, off)
	assert.NoError(t, err)
	assert.Equal(t, len(want), n)
	assert.True(t, bytes.Equal(want, got), "the part at %d", off)
}
