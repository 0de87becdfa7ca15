package oplog

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Type is the kind of a record. The codes are on the media: frozen.
//
// Every record begins with
//
//	0  type (u8)   1  zero (u8)   2  length (u16)   4  arg (u32)   8  inode   16  time (ns)
//
// and goes on, by type:
//
//	Write     arg: first unit     24 file hugeblock (u32)  28 hugeblock on the media (u32)
//	                              32 end                   40 CRC per unit
//	Create    arg: mode           24 parent  32 uid (u32)  36 gid (u32)
//	                              40 name length (u16)  42 target length (u16)  44 name, target
//	Unlink    arg: 0              24 parent  32 name length (u16)  34 name
//	Link      arg: 0              like Unlink
//	Rename    arg: flags          24 parent  32 new parent  40 name length (u16)
//	                              42 new name length (u16)  44 name, new name
//	Truncate  arg: 1 if CRC       24 size  32 CRC of the last unit
//	SetAttr   arg: mask           24 mode (u32)  28 uid (u32)  32 gid (u32)  36 zero (u32)
//	                              40 atime  48 mtime
//	Close     arg: 0
//	Allocate  arg: 0              24 file hugeblock (u32)  28 hugeblock on the media (u32)
//	                              32 count (u32)  36 zero (u32)  40 least size
//	Punch     arg: 0              24 file hugeblock (u32)  28 count (u32)
//	MapRange  arg: 0              24 least size  32 mtime  40 ranges, 24 bytes each:
//	                              0 offset  8 length  16 partition (u32)  20 cut (u32)
//	DropRange arg: 0              24 offset  32 length
type Type uint8

// The record types.
const (
	// Write maps a run of hugeblocks of a file to hugeblocks that follow each
	// other on the media, up to byte End of the run, with a CRC for each unit
	// from FirstUnit on. The units before it are already mapped there.
	Write Type = 1
	// Create makes an inode (file, directory or symbolic link, by Mode) with a name.
	Create Type = 2
	// Unlink removes a name (of a directory, too).
	Unlink Type = 3
	// Link adds a name to an inode.
	Link Type = 4
	// Rename moves a name, over an existing one if there is one.
	Rename Type = 5
	// Truncate sets the size. If the new end cuts a unit short, CRC is the checksum of the
	// bytes of that unit that are left.
	Truncate Type = 6
	// SetAttr changes mode, owner and times, by Mask.
	SetAttr Type = 7
	// Close: the last writer closed the file.
	Close Type = 8
	// Allocate maps Count unmapped hugeblocks of a file to unwritten hugeblocks that follow
	// each other on the media. The file is at least Size bytes long afterwards. Count may
	// be 0.
	Allocate Type = 9
	// Punch frees the hugeblocks on the media that Count hugeblocks of a file are mapped to.
	Punch Type = 10
	// MapRange says that the bytes of Ranges of a file are in other partitions. Where two ranges
	// overlap the later one counts. The file is at least Size bytes long afterwards, and its
	// modification time is Mtime.
	MapRange Type = 11
	// DropRange removes mappings to other partitions (MapRange) for Length bytes from Offset on.
	DropRange Type = 12
)

// Bits of Record.Mask.
const (
	SetMode  = 1 << 0
	SetUID   = 1 << 1
	SetGID   = 1 << 2
	SetAtime = 1 << 3
	SetMtime = 1 << 4
)

// RenameExchange is the one bit of Record.Flags: both names exist and change places.
const RenameExchange = 1 << 0

const (
	headerSize   = 24
	writeSize    = 40
	createSize   = 44
	nameSize     = 34
	renameSize   = 44
	truncateSize = 40
	setAttrSize  = 56
	allocateSize = 48
	punchSize    = 32
	mapRangeSize = 40
	rangeSize    = 24
	dropSize     = 40
)

// MaxRanges is the largest number of ranges in a MapRange record, so that the record and the
// deferred ones fit a page.
const MaxRanges = (Capacity - maxDeferred - mapRangeSize) / rangeSize

// A Range is a part of a file whose bytes are in another partition. Cut is the number of times that
// the file had been truncated when these bytes were written.
type Range struct {
	Off, Len       int64
	Partition, Cut uint32
}

// End returns the offset of the byte behind the range.
func (r *Range) End() int64 { return r.Off + r.Len }

// ErrRecord: a record in an intact page is not valid.
var ErrRecord = errors.New("log record is not valid")

// Record is one operation, decoded. Which fields count depends on Type.
// Decoding reuses the struct: Name, NewName, CRCs and Ranges are valid until the next record.
type Record struct {
	Type      Type
	Ino       uint64
	Time      int64 // nanoseconds since the epoch
	Parent    uint64
	NewParent uint64
	Name      []byte
	NewName   []byte // Rename: the new name; Create: target of a symbolic link
	Mode      uint32
	UID, GID  uint32
	Mask      uint32 // SetAttr
	Flags     uint32 // Rename
	Atime     int64
	Mtime     int64  // SetAttr, MapRange
	Size      uint64 // Truncate, Allocate, MapRange
	Count     uint32 // Allocate, Punch
	HasCRC    bool   // Truncate: CRC holds
	CRC       uint64 // Truncate

	FirstUnit uint32   // Write: index of the first CRC, counted in units from File
	File      uint32   // Write, Allocate, Punch: first hugeblock in the file
	Phys      uint32   // Write, Allocate: first hugeblock on the media
	End       uint64   // Write: covered bytes, from the start of File
	CRCs      []uint64 // Write

	Ranges         []Range // MapRange
	Offset, Length uint64  // DropRange
}

// Len returns the encoded length in bytes.
func (r *Record) Len() int {
	switch r.Type {
	case Write:
		return writeSize + 8*len(r.CRCs)
	case Create:
		return createSize + len(r.Name) + len(r.NewName)
	case Unlink, Link:
		return nameSize + len(r.Name)
	case Rename:
		return renameSize + len(r.Name) + len(r.NewName)
	case Truncate:
		return truncateSize
	case SetAttr:
		return setAttrSize
	case Allocate:
		return allocateSize
	case Punch:
		return punchSize
	case MapRange:
		return mapRangeSize + rangeSize*len(r.Ranges)
	case DropRange:
		return dropSize
	}
	return headerSize
}

// encode writes the record to the start of b, which has space for Len bytes.
func (r *Record) encode(b []byte) int {
	n := r.Len()
	b = b[:n]
	clear(b[:min(n, setAttrSize)])
	le := binary.LittleEndian
	b[0] = byte(r.Type)
	le.PutUint16(b[2:], uint16(n))
	le.PutUint64(b[8:], r.Ino)
	le.PutUint64(b[16:], uint64(r.Time))
	switch r.Type {
	case Write, Allocate, Punch:
		r.encodeExtent(b)
	case Create, Unlink, Link, Rename:
		r.encodeNames(b)
	case Truncate, SetAttr:
		r.encodeAttributes(b)
	case MapRange, DropRange:
		r.encodeRanges(b)
	}
	return n
}

func (r *Record) encodeExtent(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b[24:], r.File)
	switch r.Type {
	case Write:
		le.PutUint32(b[4:], r.FirstUnit)
		le.PutUint32(b[28:], r.Phys)
		le.PutUint64(b[32:], r.End)
		putCRCs(b[writeSize:], r.CRCs)
	case Allocate:
		le.PutUint32(b[28:], r.Phys)
		le.PutUint32(b[32:], r.Count)
		le.PutUint64(b[40:], r.Size)
	case Punch:
		le.PutUint32(b[28:], r.Count)
	}
}

func (r *Record) encodeNames(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b[24:], r.Parent)
	switch r.Type {
	case Create:
		le.PutUint32(b[4:], r.Mode)
		le.PutUint32(b[32:], r.UID)
		le.PutUint32(b[36:], r.GID)
		putNames(b[40:], r.Name, r.NewName)
	case Unlink, Link:
		le.PutUint16(b[32:], uint16(len(r.Name)))
		copy(b[nameSize:], r.Name)
	case Rename:
		le.PutUint32(b[4:], r.Flags)
		le.PutUint64(b[32:], r.NewParent)
		putNames(b[40:], r.Name, r.NewName)
	}
}

func (r *Record) encodeAttributes(b []byte) {
	le := binary.LittleEndian
	if r.Type == Truncate {
		if r.HasCRC {
			b[4] = 1
		}
		le.PutUint64(b[24:], r.Size)
		le.PutUint64(b[32:], r.CRC)
		return
	}
	le.PutUint32(b[4:], r.Mask)
	le.PutUint32(b[24:], r.Mode)
	le.PutUint32(b[28:], r.UID)
	le.PutUint32(b[32:], r.GID)
	le.PutUint64(b[40:], uint64(r.Atime))
	le.PutUint64(b[48:], uint64(r.Mtime))
}

func (r *Record) encodeRanges(b []byte) {
	le := binary.LittleEndian
	if r.Type == DropRange {
		le.PutUint64(b[24:], r.Offset)
		le.PutUint64(b[32:], r.Length)
		return
	}
	le.PutUint64(b[24:], r.Size)
	le.PutUint64(b[32:], uint64(r.Mtime))
	putRanges(b[mapRangeSize:], r.Ranges)
}

func putRanges(b []byte, ranges []Range) {
	for i := range ranges {
		ranges[i].Encode(b[i*rangeSize:])
	}
}

// Encode writes the range to the first 24 bytes of b.
func (r *Range) Encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, uint64(r.Off))
	le.PutUint64(b[8:], uint64(r.Len))
	le.PutUint32(b[16:], r.Partition)
	le.PutUint32(b[20:], r.Cut)
}

// DecodeRange reads the range in the first 24 bytes of b, whatever its numbers are.
func DecodeRange(b []byte) Range {
	le := binary.LittleEndian
	return Range{int64(le.Uint64(b)), int64(le.Uint64(b[8:])), le.Uint32(b[16:]), le.Uint32(b[20:])}
}

func putCRCs(b []byte, crcs []uint64) {
	for i, c := range crcs {
		binary.LittleEndian.PutUint64(b[8*i:], c)
	}
}

func putNames(b, one, two []byte) {
	binary.LittleEndian.PutUint16(b, uint16(len(one)))
	binary.LittleEndian.PutUint16(b[2:], uint16(len(two)))
	copy(b[4:], one)
	copy(b[4+len(one):], two)
}

func getNames(b []byte) (one, two []byte, ok bool) {
	i := int(binary.LittleEndian.Uint16(b))
	j := int(binary.LittleEndian.Uint16(b[2:]))
	if i+j != len(b)-4 {
		return nil, nil, false
	}
	return b[4 : 4+i], b[4+i:], true
}

// decode reads the record at the start of b and returns its length.
func (r *Record) decode(b []byte) (int, error) {
	if len(b) < headerSize {
		return 0, fmt.Errorf("%d bytes left, a record has at least %d: %w", len(b), headerSize, ErrRecord)
	}
	le := binary.LittleEndian
	n := int(le.Uint16(b[2:]))
	t := Type(b[0])
	if n > len(b) || b[1] != 0 || n < minLen(t) {
		return 0, fmt.Errorf("record of type %d says it has %d bytes: %w", t, n, ErrRecord)
	}
	b = b[:n]
	*r = Record{Type: t, Ino: le.Uint64(b[8:]), Time: int64(le.Uint64(b[16:])), CRCs: r.CRCs[:0], Ranges: r.Ranges[:0]}
	ok := true
	switch t {
	case Write:
		r.FirstUnit, r.File, r.Phys = le.Uint32(b[4:]), le.Uint32(b[24:]), le.Uint32(b[28:])
		r.End = le.Uint64(b[32:])
		ok = n%8 == 0
		for at := writeSize; ok && at < n; at += 8 {
			r.CRCs = append(r.CRCs, le.Uint64(b[at:]))
		}
	case Create:
		r.Mode, r.Parent = le.Uint32(b[4:]), le.Uint64(b[24:])
		r.UID, r.GID = le.Uint32(b[32:]), le.Uint32(b[36:])
		r.Name, r.NewName, ok = getNames(b[40:])
	case Unlink, Link:
		r.Parent, r.Name = le.Uint64(b[24:]), b[nameSize:]
		ok = int(le.Uint16(b[32:])) == len(r.Name)
	case Rename:
		r.Flags, r.Parent, r.NewParent = le.Uint32(b[4:]), le.Uint64(b[24:]), le.Uint64(b[32:])
		r.Name, r.NewName, ok = getNames(b[40:])
	case Truncate:
		r.HasCRC, r.Size, r.CRC = b[4] == 1, le.Uint64(b[24:]), le.Uint64(b[32:])
	case SetAttr:
		r.Mask, r.Mode = le.Uint32(b[4:]), le.Uint32(b[24:])
		r.UID, r.GID = le.Uint32(b[28:]), le.Uint32(b[32:])
		r.Atime, r.Mtime = int64(le.Uint64(b[40:])), int64(le.Uint64(b[48:]))
	case Allocate:
		r.File, r.Phys, r.Count, r.Size = le.Uint32(b[24:]), le.Uint32(b[28:]), le.Uint32(b[32:]), le.Uint64(b[40:])
	case Punch:
		r.File, r.Count = le.Uint32(b[24:]), le.Uint32(b[28:])
	case MapRange:
		r.Size, r.Mtime = le.Uint64(b[24:]), int64(le.Uint64(b[32:]))
		ok = (n-mapRangeSize)%rangeSize == 0
		for at := mapRangeSize; ok && at < n; at += rangeSize {
			r.Ranges = append(r.Ranges, DecodeRange(b[at:]))
		}
	case DropRange:
		r.Offset, r.Length = le.Uint64(b[24:]), le.Uint64(b[32:])
	}
	if !ok {
		return 0, fmt.Errorf("record of type %d and %d bytes: the lengths in it do not add up: %w", t, n, ErrRecord)
	}
	return n, nil
}

// minLen returns the length of the fixed part of a record of type t. For an unknown type it
// returns a length that no record has.
func minLen(t Type) int {
	switch t {
	case Write:
		return writeSize
	case Create:
		return createSize
	case Unlink, Link:
		return nameSize
	case Rename:
		return renameSize
	case Truncate:
		return truncateSize
	case SetAttr:
		return setAttrSize
	case Allocate:
		return allocateSize
	case Punch:
		return punchSize
	case MapRange:
		return mapRangeSize
	case DropRange:
		return dropSize
	case Close:
		return headerSize
	}
	return PageSize
}
