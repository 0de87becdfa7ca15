package index

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// Kinds of findings beside those of microfs.
const (
	FoundMapped microfs.FindingKind = "mapped" // bytes are not where the index says
	FoundShards microfs.FindingKind = "shards" // a partition has unused shards
)

// A Report is what Check finds.
type Report struct {
	Findings []microfs.Finding
	Unused   map[uint32][]wire.Shard // by partition: they can be removed
}

// check is one in progress.
type check struct {
	fs        *microfs.FS
	partition func(place uint32) (*microfs.FS, error)
	named     map[place]struct{}
	Report
}

// A place is a shard in a partition.
type place struct {
	number uint32
	wire.Shard
}

// Check checks whether the partitions have the bytes that the file system of an index maps to them, and which of their shards are unused: their
// file is gone, or has been cut. partition returns one of them, mounted after fs, or microfs.ErrUnformatted; what else it returns
// as an error is told by who checks that partition. Nothing is changed.
func Check(fs *microfs.FS, places []uint32, partition func(place uint32) (*microfs.FS, error)) (*Report, error) {
	c := &check{fs: fs, partition: partition, named: map[place]struct{}{}}
	c.Unused = map[uint32][]wire.Shard{}
	if err := fs.EachRange(c.file); err != nil {
		return nil, err
	}
	for _, n := range places {
		if err := c.unused(n); err != nil {
			return nil, fmt.Errorf("partition %d: %w", n, err)
		}
	}
	return &c.Report, nil
}

// file checks the ranges of one file. There is one finding for each shard.
func (c *check) file(a microfs.Attr, ranges []microfs.Range) error {
	lost := map[place]bool{}
	for _, r := range ranges {
		p := place{r.Partition, wire.Shard{Ino: a.Ino, Birth: a.Birth, Cut: r.Cut}}
		c.named[p] = struct{}{}
		if lost[p] {
			continue
		}
		if err := c.has(p, r); err != nil {
			lost[p] = true
			c.Findings = append(c.Findings, microfs.Finding{
				Kind: FoundMapped, Severity: microfs.Loss, Where: fmt.Sprintf("inode %d of the tree", a.Ino), Offset: -1, Ino: a.Ino,
				What:   fmt.Sprintf("bytes %d to %d are in the partition of rank %d, in the file %s there: %v", r.Off, r.End()-1, r.Partition, p.Name(), err),
				Remedy: "reads of these bytes are errors; write the file again",
			})
		}
	}
	return nil
}

// has looks whether a shard has all bytes of a range.
func (c *check) has(p place, r microfs.Range) error {
	fs, err := c.partition(p.number)
	if errors.Is(err, microfs.ErrUnformatted) {
		return err
	}
	if err != nil {
		return nil // see Check
	}
	f, err := fs.Open(microfs.RootIno, p.Name(), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	end, err := f.SeekHole(r.Off)
	if errors.Is(err, syscall.ENXIO) || err == nil && end < r.End() {
		return fmt.Errorf("it has none from byte %d on", max(end, r.Off))
	}
	return err
}

// unused finds the unused shards of a partition.
func (c *check) unused(number uint32) error {
	fs, err := c.partition(number)
	if err != nil {
		return nil // see Check
	}
	shards, err := shardsIn(fs)
	for _, s := range shards {
		if !c.needed(place{number, s}) {
			c.Unused[number] = append(c.Unused[number], s)
		}
	}
	if n := len(c.Unused[number]); n > 0 {
		c.Findings = append(c.Findings, microfs.Finding{
			Kind: FoundShards, Severity: microfs.Note, Where: fmt.Sprintf("partition of rank %d", number), Offset: -1,
			What:   fmt.Sprintf("%d of its files are of files of the tree that are gone, or were cut", n),
			Remedy: "the next run with this rank removes them",
		})
	}
	return err
}

// needed says whether a shard is of a file that there is, and of its cut or named by a range.
func (c *check) needed(p place) bool {
	if _, named := c.named[p]; named {
		return true
	}
	h, err := c.fs.OpenIno(p.Ino, unix.O_RDONLY|unix.O_PATH)
	if err != nil {
		return !isStale(err)
	}
	defer h.Close() // it was only looked at
	a, err := h.Stat()
	return err != nil || a.Birth == p.Birth && a.Cut == p.Cut
}
