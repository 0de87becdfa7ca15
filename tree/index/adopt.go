package index

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/panics"
	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// An adoption searches the partition of a dead client for data that the client had not published. As the error of a
// call it is the adoption that the call has to wait for.
type adoption struct {
	partition uint32
	files     map[microfs.Ino]uint64 // with births; nil: all torn files
	done      chan struct{}          // closed at the end
}

func (a *adoption) Error() string { return fmt.Sprintf("partition %d is being adopted", a.partition) }

func (a *adoption) over() <-chan struct{} { return a.done }

func (a *adoption) limit(x *Index, begun time.Time) (time.Duration, bool) { return x.rest(begun) }

func (a *adoption) expired(x *Index) error {
	return fmt.Errorf("files that a process of partition %d had open when it died cannot be opened yet: the partition could not be read within %v: %w",
		a.partition, x.opts.Timeout/2, syscall.EIO)
}

// Adopt adopts a partition whose process may have died in an earlier run, or with the index. Calls on files that are
// not complete wait until the adoption ends. The adoption begins when the leases of the previous index have ended.
func (x *Index) Adopt(partition uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.closed && x.opts.Adopt != nil {
		x.begin(&adoption{partition: partition, done: make(chan struct{})})
	}
}

// begin starts an adoption. The caller holds x.mu.
func (x *Index) begin(a *adoption) {
	x.adoptions[a] = struct{}{}
	x.work.Add(1)
	go func() {
		defer x.work.Done()
		if a.files == nil {
			x.awaitLeases()
		}
		err := x.adopt(a)
		for try := 1; a.files == nil && transient(err) && try < tries; try++ { // its process may be alive and write
			time.Sleep(pause)
			err = x.adopt(a)
		}
		if err != nil && x.ctx.Err() == nil {
			x.opts.Logf("what a process of partition %d had written and not closed when it died is missing from %s: %v", a.partition, a.what(), err)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		x.searchFailed = x.searchFailed || err != nil && a.files == nil
		delete(x.adoptions, a)
		close(a.done)
	}()
}

// awaitLeases waits until no process writes to space that the previous index has reserved, without checking whether
// that index still runs.
func (x *Index) awaitLeases() {
	select {
	case <-time.After(time.Until(x.begun.Add(x.opts.Lease))):
	case <-x.ctx.Done():
	}
}

// A mount may show an old state while a writer changes the partition, so an adoption is tried several times.
const (
	tries = 6
	pause = 5 * time.Millisecond
)

// transient reports whether a newer mount may resolve an error.
func transient(err error) bool {
	var damage *microfs.DamageError
	return errors.As(err, &damage) || isStale(err)
}

func (a *adoption) what() string {
	switch len(a.files) {
	case 0:
		return "its files"
	case 1:
		return "one file"
	}
	return fmt.Sprintf("%d files", len(a.files))
}

// pendingAdoption returns the adoption that a call of a client on a file has to wait for, as an error.
func (c *client) pendingAdoption(a *microfs.Attr) error {
	c.reap(a.Ino)
	return c.x.adoptionOf(a)
}

// adoptionOf returns an adoption that concerns a file, as an error.
func (x *Index) adoptionOf(a *microfs.Attr) error {
	for p := range x.adoptions {
		if p.concerns(a) {
			return p
		}
	}
	return nil
}

// pendingAdoption returns the adoption to wait for before the end of the file is known: a dead client may have appended without publishing.
func (f *file) pendingAdoption() error {
	a, err := f.read.Stat()
	if err != nil {
		return err
	}
	return f.x.adoptionOf(&a)
}

// An ender is a connection that knows whether its process has ended.
type ender interface{ Ended() bool }

// reap ends the other clients that write to a file and whose processes have ended, even before their connections break: a launcher
// that saw the end of such a process may have started this client.
func (c *client) reap(ino microfs.Ino) {
	f := c.x.files[ino]
	if f == nil || f.writers == 0 {
		return
	}
	for s := range f.sessions {
		if e, ok := s.client.stream.(ender); ok && s.client != c && s.writers > 0 && e.Ended() {
			_ = s.client.stream.Close()
			c.x.end(s.client)
		}
	}
}

func (p *adoption) concerns(a *microfs.Attr) bool {
	if p.files == nil {
		return !a.Closed && a.Mode&unix.S_IFMT == unix.S_IFREG
	}
	birth, there := p.files[a.Ino]
	return there && birth == a.Birth
}

// adopt maps the data that the partition has of the files.
func (x *Index) adopt(a *adoption) (err error) {
	defer panics.Contain("the adoption of what a dead process has written", &err)
	fs, done, err := x.opts.Adopt(x.ctx, a.partition)
	if err != nil {
		return err
	}
	defer done()
	shards, err := x.tornShards(a, fs)
	errs := []error{err}
	for _, s := range shards {
		errs = append(errs, x.adoptShard(a, fs, s))
	}
	return errors.Join(errs...)
}

// tornShards returns the shards to adopt.
func (x *Index) tornShards(a *adoption, fs *microfs.FS) (shards []wire.Shard, err error) {
	for ino, birth := range a.files {
		if cut, ok := x.cutOf(ino, birth); ok {
			shards = append(shards, wire.Shard{Ino: ino, Birth: birth, Cut: cut})
		}
	}
	if a.files != nil {
		return shards, nil
	}
	there, err := shardsIn(fs)
	for _, s := range there {
		// Whether the shard is complete says nothing: its rank may have closed it, and not told.
		if at, err := x.inode(s.Ino); err == nil && at.Birth == s.Birth && !at.Closed {
			shards = append(shards, s)
		}
	}
	return shards, err
}

// cutOf returns the cut of a file, and whether there still is one of this birth.
func (x *Index) cutOf(ino microfs.Ino, birth uint64) (cut uint32, ok bool) {
	a, err := x.inode(ino)
	return a.Cut, err == nil && a.Birth == birth
}

// adoptShard maps the data of a shard to the holes of its file.
func (x *Index) adoptShard(a *adoption, fs *microfs.FS, s wire.Shard) error {
	f, err := fs.Open(microfs.RootIno, s.Name(), unix.O_RDONLY, 0)
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	parts, err := written(f)
	if err != nil {
		return err
	}
	at, err := f.Stat()
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return errClosed
	}
	if a.files == nil && !at.Closed {
		x.noteUnfinished(a.partition, s)
	}
	if err := x.fill(a, s, parts, at.Size); err != nil {
		return fmt.Errorf("inode %d: %w", s.Ino, err)
	}
	return nil
}

// written returns the ranges of a shard that have data. Zeros at the beginning of a range are left out: they may not
// have been written, since a write into the middle of a hugeblock fills its beginning with zeros. They could hide
// data of another shard.
func written(f *microfs.File) (parts []wire.Range, err error) {
	for end := int64(0); ; {
		begin, err := f.SeekData(end)
		if errors.Is(err, syscall.ENXIO) {
			return parts, nil
		}
		if err == nil {
			end, err = f.SeekHole(begin)
		}
		if err == nil {
			begin, err = skipZeros(f, begin, end)
		}
		if err != nil {
			return nil, err
		}
		if begin < end {
			parts = append(parts, wire.Range{Off: begin, Len: end - begin})
		}
	}
}

// skipZeros returns the end of the zeros that begin at off, as far as it reads.
func skipZeros(f *microfs.File, off, end int64) (int64, error) {
	b := make([]byte, min(end-off, int64(microfs.DefaultHugeblock)))
	n, err := f.ReadAt([][]byte{b}, off)
	return off + int64(n-len(bytes.TrimLeft(b[:n], "\x00"))), err
}

// fill maps ranges of a shard to the holes of its file, if the shard has the cut of the file. A file that was
// complete when all processes were killed is not changed. The file becomes as long as the shard, which may end in
// zeros.
func (x *Index) fill(p *adoption, s wire.Shard, parts []wire.Range, size int64) error {
	h, err := x.fs.OpenIno(s.Ino, unix.O_RDWR)
	if isStale(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = h.CloseIncomplete() }() // does not mark the file complete
	a, err := h.Stat()
	if err != nil || a.Birth != s.Birth || a.Cut != s.Cut || a.Closed && p.files == nil {
		return err
	}
	var ranges []microfs.Range
	for _, part := range parts {
		if ranges, err = x.holes(h, part, a.Size, ranges); err != nil {
			return err
		}
	}
	if len(ranges) == 0 && size <= a.Size {
		return nil
	}
	for i := range ranges {
		ranges[i].Partition, ranges[i].Cut = p.partition, s.Cut
	}
	return h.MapRanges(ranges, max(size, a.Size), time.Now())
}

// holes appends to dst the parts of p that are holes in the file, or behind its size.
func (x *Index) holes(h *microfs.File, p wire.Range, size int64, dst []microfs.Range) (_ []microfs.Range, err error) {
	x.spans, err = h.Ranges(p.Off, p.Len, math.MaxInt, x.spans[:0])
	for _, s := range x.spans {
		if s.Kind == microfs.SpanHole {
			dst = append(dst, microfs.Range{Off: s.Off, Len: s.Len})
		}
	}
	if from := max(p.Off, size); from < p.Off+p.Len {
		dst = append(dst, microfs.Range{Off: from, Len: p.Off + p.Len - from})
	}
	return dst, err
}

// inode returns the attributes of a file by its number. ESTALE if there is none.
func (x *Index) inode(ino microfs.Ino) (microfs.Attr, error) {
	h, err := x.fs.OpenIno(ino, unix.O_RDONLY|unix.O_PATH)
	if err != nil {
		return microfs.Attr{}, err
	}
	defer h.Close() // changes nothing
	return h.Stat()
}

func isStale(err error) bool { return errors.Is(err, syscall.ESTALE) }
