package wire

import (
	"fmt"
	"time"

	"nvmecr/microfs"
)

// NoPartition is the partition of a client that is not a rank, or does not write.
const NoPartition = ^uint32(0)

// A Name is a path from the directory Dir, or Dir itself if Path is empty.
type Name struct {
	Dir  microfs.Ino
	Path string
}

// A Shard is the part of a file that one partition has.
type Shard struct {
	Ino   microfs.Ino // inode of the file in the index
	Birth uint64
	Cut   uint32
}

const shardName = "%016x-%x-%x"

// Name returns the name of the shard in the root directory of its partition.
func (s Shard) Name() string { return fmt.Sprintf(shardName, uint64(s.Ino), s.Birth, s.Cut) }

// ParseShard parses the name of a shard. ok is false if it is not one.
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

// A Kind says where the bytes of a segment are.
type Kind uint8

// The kinds of segments.
const (
	Hole   Kind = 0 // nowhere: zeros
	Own    Kind = 1 // in the index's partition
	Mapped Kind = 2 // in a shard
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

// A Range is a part of a file in the client's partition.
type Range struct{ Off, Len int64 }

const rangeSize = 16

func (r *Range) fields(c *codec) {
	u64(c, &r.Off)
	u64(c, &r.Len)
}

// A LockKind is a kind of locks. Locks of different kinds do not conflict.
type LockKind uint8

// The kinds of locks.
const (
	RecordLock LockKind = 0 // fcntl(2)
	FileLock   LockKind = 1 // flock(2)
)

// A Locked is a lock on the part [Start, End) of a file.
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

// Attr has the attributes of a file.
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
