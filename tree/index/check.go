package index

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// Kinds of findings in addition to those of microfs.
const (
	FoundMapped microfs.FindingKind = "mapped" // mapped data is missing from its partition
	FoundShards microfs.FindingKind = "shards" // a partition has unused shards
)

// A Report is the result of Check.
type Report struct {
	Findings []microfs.Finding
	Unused   map[uint32][]wire.Shard // removable shards by partition
}

// check is the state of a Check.
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

// Check checks that the partitions have the data that the file system of an index maps to them, and finds unused
// shards: those of removed files and of earlier cuts. partition returns a partition, mounted after fs, or
// microfs.ErrUnformatted. Partitions for which it returns another error are skipped; the check of that partition
// reports the error. Nothing is changed.
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

// file checks the ranges of one file. It makes one finding for each shard.
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

// has checks that a shard has all bytes of a range.
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
	defer f.Close() // only read
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
			What:   fmt.Sprintf("%d of its files are shards of files of the tree that were removed or truncated", n),
			Remedy: "the next run with this rank removes them",
		})
	}
	return err
}

// needed reports whether the file of a shard exists, and has the cut of the shard or refers to it.
func (c *check) needed(p place) bool {
	if _, named := c.named[p]; named {
		return true
	}
	h, err := c.fs.OpenIno(p.Ino, unix.O_RDONLY|unix.O_PATH)
	if err != nil {
		return !isStale(err)
	}
	defer h.Close() // only read
	a, err := h.Stat()
	return err != nil || a.Birth == p.Birth && a.Cut == p.Cut
}
