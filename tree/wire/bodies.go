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
	Partition uint32 // partition that the client writes, or NoPartition
	PID       uint32
	Host      string
	Cred      microfs.Cred // credentials of calls until SetCred
	// Before is the killed index to which the client was connected; zero for a client that has just started.
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

// Cred has the credentials of later calls: the request of SetCred.
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

// OpenIno opens a file by its inode number.
type OpenIno struct {
	Ino   microfs.Ino
	Flags uint32
}

func (r *OpenIno) fields(c *codec) {
	u64(c, &r.Ino)
	u32(c, &r.Flags)
}

// Keep keeps a file that the client has open until another client opens it by its inode number, even if its names are
// removed and the client ends. EBADF.
type Keep struct{ Ino microfs.Ino }

func (r *Keep) fields(c *codec) { u64(c, &r.Ino) }

// Leave closes, once, a file that the client has open for reading. There is no answer, so that the client need not wait.
type Leave struct{ Ino microfs.Ino }

func (r *Leave) fields(c *codec) { u64(c, &r.Ino) }

// Reopen opens a file that the client had open at a killed index, with the number of opens and of opens for writing.
// ESTALE if the file no longer exists.
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

// A Publication lists ranges that the client has written to its shard of a file and made durable there.
type Publication struct {
	Ino     microfs.Ino
	Birth   uint64
	Cut     uint32 // cut of the shard
	Size    int64  // minimum size of the file
	Mtime   time.Time
	Durable bool // must survive a power loss
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

// Close ends one Open. If there are ranges it publishes them first. The file is closed whatever the answer is.
type Close struct {
	Writer bool // the file was open for writing
	Failed bool // some written data is not published: the file is not complete
	Publication
}

func (r *Close) fields(c *codec) {
	c.truth(&r.Writer)
	c.truth(&r.Failed)
	r.Publication.fields(c)
}

// Map requests the segments of a range of an open file.
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

// Write writes to the index's partition. Nothing is written at or beyond Most.
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

// Read reads data from the index's partition; EAGAIN if some of the data is elsewhere, since the layout has changed.
// With OpReadCopy it reads from a copy of the file; ENOENT if there is none of the file's present version.
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

// Stat requests attributes.
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

// Allocate is fallocate(2) on an open file.
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

// ReadDir requests at most N names of an open directory behind After.
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

// Access checks permissions of a user for a file.
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

// Mkdir creates a directory.
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

// Symlink creates a symbolic link.
type Symlink struct {
	Target string
	Name
}

func (r *Symlink) fields(c *codec) {
	c.text(&r.Target)
	c.name(&r.Name)
}

// Readlink requests the target of a symbolic link.
type Readlink struct{ Name }

func (r *Readlink) fields(c *codec) { c.name(&r.Name) }

// Path requests the path of a directory if Path is empty, otherwise the path without symbolic links.
type Path struct{ Name }

func (r *Path) fields(c *codec) { c.name(&r.Name) }

// Lock replaces the client's locks in [Start, End) of an open file by Hold, which is in order and does not overlap.
// EAGAIN if a lock of another client conflicts. A test changes nothing, and returns that lock.
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

// Shards lists the shards in the client's partition. The shards to remove come with this answer and the next ones.
type Shards struct{ List []Shard }

func (r *Shards) fields(c *codec) {
	list(c, &r.List, MaxShards, shardSize, func(c *codec, v *Shard) { v.fields(c) })
}

// Grow requests a minimum number of partitions; its answer is the number that exist.
type Grow struct{ Partitions uint32 }

func (r *Grow) fields(c *codec) { u32(c, &r.Partitions) }
