package wire

import (
	"time"

	"github.com/google/uuid"

	"nvmecr/microfs"
)

// Hello is the first request of a connection.
type Hello struct {
	Format    uint32 // version of the store's format
	Run       uuid.UUID
	Partition uint32 // that the client writes, or NoPartition
	PID       uint32
	Host      string
	Cred      microfs.Cred // who calls, until SetCred
	// Before is the index that the client comes from, which was killed; zero for a client that has just started.
	Before uuid.UUID
}

func (h *Hello) fields(c *codec) {
	u32(c, &h.Format)
	c.array(h.Run[:])
	u32(c, &h.Partition)
	u32(c, &h.PID)
	c.text(&h.Host)
	c.cred(&h.Cred)
	c.array(h.Before[:])
}

// Cred is who calls from now on: the request of SetCred.
type Cred struct{ microfs.Cred }

func (r *Cred) fields(c *codec) { c.cred(&r.Cred) }

// Open opens a path, with the flags of open(2).
type Open struct {
	Name
	Flags uint32
	Mode  uint32
}

func (r *Open) fields(c *codec) {
	c.name(&r.Name)
	u32(c, &r.Flags)
	u32(c, &r.Mode)
}

// OpenIno opens a file by its number.
type OpenIno struct {
	Ino   microfs.Ino
	Flags uint32
}

func (r *OpenIno) fields(c *codec) {
	u64(c, &r.Ino)
	u32(c, &r.Flags)
}

// Keep keeps a file that the client has open until somebody opens it by its number, whatever becomes of its names and of the client. EBADF.
type Keep struct{ Ino microfs.Ino }

func (r *Keep) fields(c *codec) { u64(c, &r.Ino) }

// Reopen opens what the client had open at an index that was killed: so often, and of that so often for writing. ESTALE where it is gone.
type Reopen struct {
	Ino            microfs.Ino
	Birth          uint64
	Opens, Writers uint32
}

func (r *Reopen) fields(c *codec) {
	u64(c, &r.Ino)
	u64(c, &r.Birth)
	u32(c, &r.Opens)
	u32(c, &r.Writers)
}

// A Publication says what the client has written to its shard of a file and made durable there.
type Publication struct {
	Ino     microfs.Ino
	Birth   uint64
	Cut     uint32 // of the shard
	Size    int64  // of the file, at least
	Mtime   time.Time
	Durable bool // also past a loss of power
	Ranges  []Range
}

func (r *Publication) fields(c *codec) {
	u64(c, &r.Ino)
	u64(c, &r.Birth)
	u32(c, &r.Cut)
	u64(c, &r.Size)
	c.time(&r.Mtime)
	c.truth(&r.Durable)
	list(c, &r.Ranges, MaxRanges, rangeSize, func(c *codec, v *Range) { v.fields(c) })
}

// Close ends one Open, and publishes before, unless there are no ranges. Whatever the answer is, the file is closed.
type Close struct {
	Writer bool // it was open for writing
	Failed bool // and what was written is not all published: the file is not complete
	Publication
}

func (r *Close) fields(c *codec) {
	c.truth(&r.Writer)
	c.truth(&r.Failed)
	r.Publication.fields(c)
}

// Map asks where the bytes of a part of an open file are.
type Map struct {
	Ino      microfs.Ino
	Off, Len int64
}

func (r *Map) fields(c *codec) {
	u64(c, &r.Ino)
	u64(c, &r.Off)
	u64(c, &r.Len)
}

// Append reserves space at the end of an open file, none of it at or beyond Most.
type Append struct {
	Ino        microfs.Ino
	Len, Limit int64
}

func (r *Append) fields(c *codec) {
	u64(c, &r.Ino)
	u64(c, &r.Len)
	u64(c, &r.Limit)
}

// AtEnd is the offset of a Write that appends.
const AtEnd = -1

// Write writes to the index's own partition. Nothing is written at or beyond Most.
type Write struct {
	Ino        microfs.Ino
	Off, Limit int64
	Data       []byte
}

func (r *Write) fields(c *codec) {
	u64(c, &r.Ino)
	u64(c, &r.Off)
	u64(c, &r.Limit)
	c.data(&r.Data)
}

// Read reads bytes that are the index's own, EAGAIN where some are not: the map has changed; or with OpReadCopy those of a copy of the file, ENOENT where there is
// none of the file as it is.
type Read struct {
	Ino microfs.Ino
	Off int64
	Len uint32
}

func (r *Read) fields(c *codec) {
	u64(c, &r.Ino)
	u64(c, &r.Off)
	u32(c, &r.Len)
}

// Stat asks for attributes.
type Stat struct {
	Name
	Follow bool
}

func (r *Stat) fields(c *codec) {
	c.name(&r.Name)
	c.truth(&r.Follow)
}

// SetAttr changes attributes.
type SetAttr struct {
	Name
	Follow bool
	What   microfs.SetAttr
}

func (r *SetAttr) fields(c *codec) {
	c.name(&r.Name)
	c.truth(&r.Follow)
	optional(c, &r.What.Mode, u32[uint32])
	optional(c, &r.What.UID, u32[uint32])
	optional(c, &r.What.GID, u32[uint32])
	optional(c, &r.What.Atime, (*codec).time)
	optional(c, &r.What.Mtime, (*codec).time)
	c.truth(&r.What.TimesNow)
}

// Truncate sets the size of a file: of a path, or of an inode that the client has open for writing.
type Truncate struct {
	Name
	Size int64
}

func (r *Truncate) fields(c *codec) {
	c.name(&r.Name)
	u64(c, &r.Size)
}

// A Mode is what Allocate does.
type Mode uint8

// The modes of Allocate. Extend makes the file at least as long as the range's end. No space is reserved.
const (
	Extend       Mode = 0
	Punch        Mode = 1
	Zero         Mode = 2 // Punch, then Extend
	ZeroKeepSize Mode = 3
)

// Allocate is fallocate(2) of an open file.
type Allocate struct {
	Ino      microfs.Ino
	Mode     Mode
	Off, Len int64
}

func (r *Allocate) fields(c *codec) {
	u64(c, &r.Ino)
	u8(c, &r.Mode)
	u64(c, &r.Off)
	u64(c, &r.Len)
}

// ReadDir asks for names of an open directory behind After, at most N of them.
type ReadDir struct {
	Ino   microfs.Ino
	After string
	N     uint32
}

func (r *ReadDir) fields(c *codec) {
	u64(c, &r.Ino)
	c.text(&r.After)
	u32(c, &r.N)
}

// Access asks whether a user may use a file.
type Access struct {
	Name
	Mode   uint32
	Follow bool
	Who    microfs.Cred
}

func (r *Access) fields(c *codec) {
	c.name(&r.Name)
	u32(c, &r.Mode)
	c.truth(&r.Follow)
	c.cred(&r.Who)
}

// Mkdir makes a directory.
type Mkdir struct {
	Name
	Mode uint32
}

func (r *Mkdir) fields(c *codec) {
	c.name(&r.Name)
	u32(c, &r.Mode)
}

// Unlink removes a name, of a directory or of anything else.
type Unlink struct {
	Name
	Directory bool
}

func (r *Unlink) fields(c *codec) {
	c.name(&r.Name)
	c.truth(&r.Directory)
}

// Rename moves a name, with the flags of renameat2(2).
type Rename struct {
	From, To Name
	Flags    uint32
}

func (r *Rename) fields(c *codec) {
	c.name(&r.From)
	c.name(&r.To)
	u32(c, &r.Flags)
}

// Link gives a file another name.
type Link struct {
	From, To Name
	Follow   bool
}

func (r *Link) fields(c *codec) {
	c.name(&r.From)
	c.name(&r.To)
	c.truth(&r.Follow)
}

// Symlink makes a symbolic link.
type Symlink struct {
	Target string
	Name
}

func (r *Symlink) fields(c *codec) {
	c.text(&r.Target)
	c.name(&r.Name)
}

// Readlink asks what a symbolic link says.
type Readlink struct{ Name }

func (r *Readlink) fields(c *codec) { c.name(&r.Name) }

// Path asks for the path of a directory, if Path is empty, or for one without symbolic links.
type Path struct{ Name }

func (r *Path) fields(c *codec) { c.name(&r.Name) }

// Lock makes what the client has locked of [Start, End) of an open file what Hold says, which is in order and does not
// overlap. EAGAIN where a lock of another client is in the way. A test changes nothing, and returns that lock.
type Lock struct {
	Ino        microfs.Ino
	Kind       LockKind
	Start, End int64
	Hold       []Locked
	Test       bool
}

func (r *Lock) fields(c *codec) {
	u64(c, &r.Ino)
	u8(c, &r.Kind)
	u64(c, &r.Start)
	u64(c, &r.End)
	list(c, &r.Hold, MaxLocks, lockedSize, func(c *codec, v *Locked) { v.fields(c) })
	c.truth(&r.Test)
}

// Shards says which shards there are in the client's partition. Those to remove come with this answer and the next ones.
type Shards struct{ List []Shard }

func (r *Shards) fields(c *codec) {
	list(c, &r.List, MaxShards, shardSize, func(c *codec, v *Shard) { v.fields(c) })
}

// Grow asks for so many partitions, and says how many there are.
type Grow struct{ Partitions uint32 }

func (r *Grow) fields(c *codec) { u32(c, &r.Partitions) }
