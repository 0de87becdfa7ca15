package store

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// TestViewOfRank checks that a reader of a rank's partition sees everything that was acknowledged before the time
// that it passes. If the view is newer than that time the partition must not be read again.
func TestViewOfRank(t *testing.T) {
	cfg := newTree(t, 128*nvmf.MiB, 128*nvmf.MiB)
	v := NewViews(cfg, nil)
	_, err := v.Rank(ctx, 1, time.Now())
	require.ErrorIs(t, err, microfs.ErrUnformatted, "there is no store")
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		require.NoError(t, writeFile(singleton.FS, "script", scriptFile))
		_, err := singleton.Grow(ctx, cfg, 3, quietly)
		require.NoError(t, err)
	})
	mustOpen(t, cfg, 3)
	for rank := range 3 {
		withPartition(t, cfg, Proc{Rank: rank, Size: 3}, Options{}, func(p *Partition) {
			require.NoError(t, writeFile(p.FS, "a", scriptFile))
			fs, err := v.Rank(ctx, rank, time.Now())
			require.NoError(t, err)
			require.Equal(t, scriptFile, contentOf(t, fs, "a"))
			before := time.Now()
			fs, err = v.Rank(ctx, rank, before)
			require.NoError(t, err)
			require.NoError(t, writeFile(p.FS, "b", scriptFile))
			again, err := v.Rank(ctx, rank, before)
			require.NoError(t, err)
			assert.Same(t, fs, again, "it was looked at since")
			again, err = v.Rank(ctx, rank, time.Now())
			require.NoError(t, err)
			require.Equal(t, scriptFile, contentOf(t, again, "b"))
			same, err := v.Rank(ctx, rank, time.Now())
			require.NoError(t, err)
			assert.Same(t, again, same, "nothing has changed")
		})
	}
	fs, err := v.Rank(ctx, parttable.Singleton, time.Now())
	require.NoError(t, err)
	require.Equal(t, scriptFile, contentOf(t, fs, "script"))
	_, err = v.Rank(ctx, 3, time.Now())
	require.ErrorIs(t, err, microfs.ErrUnformatted)
}

// TestSpaceOfViews checks the sum of the space in the partitions of all ranks, including partitions that were never
// written.
func TestSpaceOfViews(t *testing.T) {
	cfg := newTree(t, 256*nvmf.MiB, 128*nvmf.MiB)
	v := NewViews(cfg, nil)
	space := func() (total, free nvmf.Bytes) {
		v.Forget()
		total, free, err := v.Space(ctx)
		require.NoError(t, err)
		return total, free
	}
	total, _ := space()
	require.Zero(t, total, "there is no store")
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		total, _ = space()
		require.Zero(t, total, "there are no ranks")
		_, err := singleton.Grow(ctx, cfg, 3, quietly)
		require.NoError(t, err)
	})
	mustOpen(t, cfg, 3) // formats the second target
	total, empty := space()
	require.Greater(t, total, 340*nvmf.MiB)
	require.Less(t, total-empty, nvmf.MiB)
	withPartition(t, cfg, Proc{Rank: 1, Size: 3}, Options{}, func(p *Partition) {
		require.NoError(t, writeFile(p.FS, "a", make([]byte, 20*nvmf.MiB)))
		again, free := space()
		assert.Equal(t, total, again)
		assert.EqualValues(t, 20*nvmf.MiB, empty-free)
	})
}

// TestViewsTogether reads files of several ranks at once, whose commands are on one queue.
func TestViewsTogether(t *testing.T) {
	cfg := newTree(t, 128*nvmf.MiB, 128*nvmf.MiB)
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		_, err := singleton.Grow(ctx, cfg, 3, quietly)
		require.NoError(t, err)
	})
	mustOpen(t, cfg, 3)
	large := make([][]byte, 3)
	for rank := range large {
		large[rank] = bytes.Repeat([]byte{byte('a' + rank)}, 3<<20)
		withPartition(t, cfg, Proc{Rank: rank, Size: 3}, Options{}, func(p *Partition) {
			require.NoError(t, writeFile(p.FS, "f", large[rank]))
		})
	}
	v := NewViews(cfg, nil)
	var all sync.WaitGroup
	for rank := range large {
		all.Go(func() {
			for range 20 {
				fs, err := v.Rank(ctx, rank, time.Now())
				if assert.NoError(t, err) {
					assert.True(t, bytes.Equal(contentOf(t, fs, "f"), large[rank]), "rank %d", rank)
				}
			}
		})
	}
	all.Wait()
}

// A recordedQueue records its calls.
type recordedQueue struct {
	nvmf.Queue
	calls []string
}

func (q *recordedQueue) Submit([]*nvmf.Command) { q.calls = append(q.calls, "submit") }

func (q *recordedQueue) Wait([]*nvmf.Command) error {
	q.calls = append(q.calls, "wait")
	return nil
}

// A recordedMirror is a recordedQueue of mirrors.
type recordedMirror struct{ recordedQueue }

func (q *recordedMirror) ReadOther(*nvmf.Command) error { return nil }

// TestSharedQueue checks that commands are in flight until their user waits for them, so that it can check the first while the next ones
// arrive; but on mirrors, where a wait is not cheap.
func TestSharedQueue(t *testing.T) {
	plain, mirror := &recordedQueue{}, &recordedMirror{}
	for _, q := range []nvmf.Queue{plain, mirror} {
		shared := sharedQueue{&sharedDevice{q: q}}
		shared.Submit(nil)
		require.NoError(t, shared.Wait(nil))
	}
	assert.Equal(t, []string{"submit", "wait"}, plain.calls)
	assert.Equal(t, []string{"submit", "wait", "wait"}, mirror.calls)
}
