package wire

import (
	"fmt"
	"time"

	"nvmecr/microfs"
)

// NoPartition is the partition of a client that is no rank, or does not write.
const NoPartition = ^uint32(0)

// A Name is a path from a directory, or, where Path is empty, what Dir is the number of.
type Name struct {
	Dir  microfs.Ino
	Path string
}

// A Shard is the part of a file that one partition has.
type Shard struct {
	Ino   microfs.Ino // in the index
	Birth uint64
	Cut   uint32
}

const shardName = "%016x-%x-%x"

// Name returns the name of the shard in the root directory of its partition.
func (s Shard) Name() string { return fmt.Sprintf(shardName, uint64(s.Ino), s.Birth, s.Cut) }

// ParseShard returns the shard that has a name, and whether there is one.
func ParseShard(name string) (s Shard, ok bool) {
	n, err := fmt.Sscanf(name, "%x-%x-%x", (*uint64)(&s.Ino), &s.Birth, &s.Cut)
	return s, err == nil && n == 3 && s.Name() == name
}

func (s *Shard) fields(c *codec) {
	u64(c, &s.Ino)
	u64(c, &s.Birth)
	u32(c, &s.Cut)
}

const shardSize = 20

// A Kind says who has the bytes of a segment.
type Kind uint8

// The kinds of segments.
const (
	Hole   Kind = 0 // none: they are zeros
	Own    Kind = 1 // the index
	Mapped Kind = 2 // a partition
)

// A Segment is a part of a file, and where its bytes are. Partition and Cut are those of the shard if
// Kind is Mapped.
type Segment struct {
	Off, Len  int64
	Kind      Kind
	Partition uint32 // partition
	Cut       uint32
}

const segmentSize = 25

func (s *Segment) fields(c *codec) {
	u64(c, &s.Off)
	u64(c, &s.Len)
	u8(c, &s.Kind)
	u32(c, &s.Partition)
	u32(c, &s.Cut)
}

// A Range is a part of a file that the client's partition has.
type Range struct{ Off, Len int64 }

const rangeSize = 16

func (r *Range) fields(c *codec) {
	u64(c, &r.Off)
	u64(c, &r.Len)
}

// A LockKind says which locks are meant: those of one kind do not meet those of another.
type LockKind uint8

// The kinds of locks.
const (
	RecordLock LockKind = 0 // fcntl(2)
	FileLock   LockKind = 1 // flock(2)
)

// A Locked is a part [Start, End) of a file that is locked.
type Locked struct {
	Start, End int64
	Write      bool
}

const lockedSize = 17

func (l *Locked) fields(c *codec) {
	u64(c, &l.Start)
	u64(c, &l.End)
	c.truth(&l.Write)
}

// Attr is what the index tells of a file.
type Attr struct{ microfs.Attr }

func (a *Attr) fields(c *codec) {
	u64(c, &a.Ino)
	u32(c, &a.Mode)
	u32(c, &a.Nlink)
	u32(c, &a.UID)
	u32(c, &a.GID)
	u64(c, &a.Size)
	u64(c, &a.Blocks)
	for _, t := range []*time.Time{&a.Atime, &a.Mtime, &a.Ctime, &a.Btime} {
		c.time(t)
	}
	c.truth(&a.Closed)
	u64(c, &a.Birth)
	u32(c, &a.Cut)
}
