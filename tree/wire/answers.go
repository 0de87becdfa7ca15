package wire

import (
	"time"

	"github.com/google/uuid"

	"nvmecr/microfs"
)

// Welcome answers Hello.
type Welcome struct {
	Timeout    time.Duration // time-out of the run
	Partitions uint32        // number of partitions of the store
	Index      uuid.UUID     // id of the index
	DataCRC    bool          // data is checksummed
}

func (a *Welcome) fields(c *codec) {
	u64(c, &a.Timeout)
	u32(c, &a.Partitions)
	c.array(a.Index[:])
	c.truth(&a.DataCRC)
}

// File answers Open, OpenIno and Map: segments in order, without gaps. More means that there are further segments
// before the end of the requested range, or of the file.
type File struct {
	Attr     Attr
	Segments []Segment
	More     bool
}

func (a *File) fields(c *codec) {
	a.Attr.fields(c)
	list(c, &a.Segments, MaxSegments, segmentSize, func(c *codec, v *Segment) { v.fields(c) })
	c.truth(&a.More)
}

// AttrAnswer is the attributes of a file after the operation.
type AttrAnswer struct{ Attr Attr }

func (a *AttrAnswer) fields(c *codec) { a.Attr.fields(c) }

// Space answers Append: the space reserved for the client. It is shorter than requested if it reaches Most.
type Space struct{ Off, Len int64 }

func (a *Space) fields(c *codec) {
	u64(c, &a.Off)
	u64(c, &a.Len)
}

// Written answers Write. If N is less than requested, the client tries to write the rest, to get the error.
type Written struct {
	Off  int64
	N    uint32
	Attr Attr
}

func (a *Written) fields(c *codec) {
	u64(c, &a.Off)
	u32(c, &a.N)
	a.Attr.fields(c)
}

// Data answers Read. It is read into the memory of Bytes. A short answer is the end of the file.
type Data struct{ Bytes []byte }

func (a *Data) fields(c *codec) { c.data(&a.Bytes) }

// Entries answers ReadDir. An empty list is the end.
type Entries struct{ List []microfs.Dirent }

func (a *Entries) fields(c *codec) { list(c, &a.List, MaxEntries, 14, entry) }

func entry(c *codec, e *microfs.Dirent) {
	c.text(&e.Name)
	u64(c, &e.Ino)
	u32(c, &e.Mode)
}

// Text answers Readlink and Path.
type Text struct{ Text string }

func (a *Text) fields(c *codec) { c.text(&a.Text) }

// Conflict answers Lock: the lock that conflicts with a test, if any, and the process that has it.
type Conflict struct {
	There bool
	Locked
	PID uint32
}

func (a *Conflict) fields(c *codec) {
	c.truth(&a.There)
	a.Locked.fields(c)
	u32(c, &a.PID)
}

// StatFS answers StatFS.
type StatFS struct{ microfs.StatFS }

func (a *StatFS) fields(c *codec) {
	s := &a.StatFS
	u64(c, &s.Hugeblock)
	u32(c, &s.Blocks)
	u32(c, &s.Free)
	u32(c, &s.Avail)
	u64(c, &s.Files)
	u64(c, &s.FilesFree)
	u64(c, &s.LogPages)
	u64(c, &s.LogFree)
	u64(c, &s.StateBytes)
	u64(c, &s.StateMax)
	count(c, &s.OpenFiles)
	u64(c, &s.Generation)
	u64(c, &s.Checkpoints)
	c.truth(&s.Ranges)
}
