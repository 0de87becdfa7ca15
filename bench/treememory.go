package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"nvmecr/bench/result"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/tree"
	"nvmecr/tree/index"
	"nvmecr/tree/wire"
)

// usualNames is the default number of names for measuring the memory of an index.
const usualNames = 100_000

// namesEach is the number of names in a directory.
const namesEach = 1000

// nameLimit is the goal for the memory of a name in an index, in bytes.
const nameLimit = 300

// memory measures the memory of names and ranges in an index.
func (t *treeRun) memory(ctx context.Context) error {
	names := t.Names
	if names == 0 {
		names = usualNames
		if t.Quick {
			names /= 10
		}
	}
	for i, m := range []struct {
		what  string
		limit float64
		n     int
		fill  func(*localIndex, int) error
	}{
		{"a name of an empty file", nameLimit, names, (*localIndex).names},
		{"a name of a file with one range", nameLimit, names, (*localIndex).files},
		{"a range more of a file of two ranks", 0, names, (*localIndex).ranges},
	} {
		t.progress("memory of an index", i, 3)
		bytes, _, err := useOfIndex(ctx, m.n, m.fill)
		if err != nil {
			return fmt.Errorf("%s: %w", m.what, err)
		}
		t.res.Goals = append(t.res.Goals, result.Goal{
			What: "memory of the index for " + m.what, Limit: m.limit, AtMost: true, Aside: m.limit == 0, Unit: result.Size,
			Measured: result.Exactly(bytes / float64(m.n)), Beside: fmt.Sprintf("%s for %s", size(bytes), result.Whole.Format(float64(m.n))),
		})
	}
	return nil
}

// A localIndex is an index in this process, on a device in memory, with two clients
// that write partitions.
type localIndex struct {
	ctx     context.Context
	clients [2]*indexClient
}

// useOfIndex returns the growth of the heap after fill, and then the duration of a
// mount of the partition in seconds.
func useOfIndex(ctx context.Context, n int, fill func(*localIndex, int) error) (heap, mount float64, err error) {
	dev, err := memdev.New(nvmf.Bytes(n)*16*nvmf.KiB+nvmf.GiB, 4096, memdev.Options{})
	if err != nil {
		return 0, 0, err
	}
	defer dev.Close()
	seg := microfs.Segment{Length: dev.Identity().Capacity()}
	if err := microfs.Format(ctx, dev, seg, microfs.FormatOptions{Generation: 1, Size: 1, Ranges: true}); err != nil {
		return 0, 0, err
	}
	err = whileMounted(ctx, dev, seg, func(fs *microfs.FS) (err error) {
		heap, err = heapOfIndex(ctx, fs, n, fill)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	err = whileMounted(ctx, dev, seg, func(*microfs.FS) error {
		mount = time.Since(begin).Seconds()
		return nil
	})
	return heap, mount, err
}

// heapOfIndex returns the growth of the heap after fill.
func heapOfIndex(ctx context.Context, fs *microfs.FS, n int, fill func(*localIndex, int) error) (bytes float64, err error) {
	x := index.New(fs, index.Options{Format: tree.Format})
	defer x.Close()
	l := &localIndex{ctx: ctx}
	for i := range l.clients {
		if l.clients[i], err = localClient(x, uint32(i)); err != nil {
			return 0, err
		}
	}
	before := heapInUse()
	if err := fill(l, n); err != nil {
		return 0, err
	}
	if err := awaitCheckpoint(ctx, fs); err != nil {
		return 0, err
	}
	bytes = max(0, heapInUse()-before)
	return bytes, errors.Join(l.clients[0].Goodbye(), l.clients[1].Goodbye())
}

// awaitCheckpoint waits until no state checkpoint is in progress, since it has the
// whole state in memory. While half of the log is free, none is in progress or about to
// begin.
func awaitCheckpoint(ctx context.Context, fs *microfs.FS) error {
	for ctx.Err() == nil {
		if err := fs.Sync(); err != nil {
			return err
		}
		if st := fs.StatFS(); st.LogFree >= st.LogPages/2 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ctx.Err()
}

func localClient(x *index.Index, partition uint32) (*indexClient, error) {
	ours, theirs := net.Pipe()
	go func() { _ = x.Serve(theirs, nil) }() // Serve ends with the connection
	c, err := tree.Connect(ours, wire.Hello{Format: tree.Format, Partition: partition, Host: "bench"}, 0)
	return &indexClient{Client: c}, err
}

// each creates n files with the given ranges.
func (l *localIndex) each(n int, ranges []wire.Range) error {
	c := l.clients[0]
	for i := range n {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		dir := fmt.Sprintf("checkpoint.%06d", i/namesEach)
		if i%namesEach == 0 {
			if err := c.Call(wire.OpMkdir, &wire.Mkdir{Name: wire.Name{Dir: microfs.RootIno, Path: dir}, Mode: 0o700}, nil); err != nil {
				return err
			}
		}
		f, err := c.open(fmt.Sprintf("%s/rank.%06d", dir, i%namesEach))
		if err == nil {
			err = c.close(&f, ranges)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *localIndex) names(n int) error { return l.each(n, nil) }

func (l *localIndex) files(n int) error {
	return l.each(n, []wire.Range{{Len: int64(128 * nvmf.MiB)}})
}

// ranges has both clients publish pieces of a file in turns, so that no piece can be
// merged with its neighbour.
func (l *localIndex) ranges(n int) error {
	const piece = int64(nvmf.MiB)
	var open [2]wire.File
	for i, c := range l.clients {
		var err error
		if open[i], err = c.open("shared"); err != nil {
			return err
		}
	}
	for at := 0; at < n; at += 2000 {
		for i, c := range l.clients {
			var list []wire.Range
			for k := at + i; k < min(n, at+2000); k += 2 {
				list = append(list, wire.Range{Off: int64(k) * piece, Len: piece})
			}
			p := publication(&open[i], list)
			var answer wire.AttrAnswer
			if err := c.Call(wire.OpPublish, &p, &answer); err != nil {
				return err
			}
		}
	}
	return errors.Join(l.clients[0].close(&open[0], nil), l.clients[1].close(&open[1], nil))
}
