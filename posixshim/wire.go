package posixshim

import (
	"time"

	"nvmecr/microfs"
)

// Time is struct nv_time of shim/wire.h.
type Time struct{ Sec, Nsec int64 }

func timeOf(t time.Time) Time {
	if t.IsZero() {
		return Time{}
	}
	return Time{t.Unix(), int64(t.Nanosecond())}
}

func (t Time) time() *time.Time {
	u := time.Unix(t.Sec, t.Nsec)
	return &u
}

// Attr is struct nv_attr of shim/wire.h.
type Attr struct {
	Ino                        uint64
	Mode, Nlink, UID, GID      uint32
	Size                       int64
	Blocks                     int64
	Atime, Mtime, Ctime, Btime Time
}

func (a *Attr) set(from *microfs.Attr) {
	*a = Attr{
		Ino: uint64(from.Ino), Mode: from.Mode, Nlink: from.Nlink, UID: from.UID, GID: from.GID,
		Size: from.Size, Blocks: from.Blocks,
		Atime: timeOf(from.Atime), Mtime: timeOf(from.Mtime), Ctime: timeOf(from.Ctime), Btime: timeOf(from.Btime),
	}
}

// Which fields of a SetAttr count: NV_SET_* of shim/wire.h.
const (
	SetMode     = 1
	SetUID      = 2
	SetGID      = 4
	SetAtime    = 8
	SetMtime    = 16
	SetAtimeNow = 32
	SetMtimeNow = 64
)

// SetAttr is struct nv_setattr of shim/wire.h.
type SetAttr struct {
	Valid          uint32
	Mode, UID, GID uint32
	Atime, Mtime   Time
}

// change returns the same for microfs, which takes the time itself.
func (s *SetAttr) change() microfs.SetAttr {
	var out microfs.SetAttr
	if s.Valid&SetMode != 0 {
		out.Mode = &s.Mode
	}
	if s.Valid&SetUID != 0 {
		out.UID = &s.UID
	}
	if s.Valid&SetGID != 0 {
		out.GID = &s.GID
	}
	now := time.Now()
	switch {
	case s.Valid&SetAtime != 0:
		out.Atime = s.Atime.time()
	case s.Valid&SetAtimeNow != 0:
		out.Atime = &now
	}
	switch {
	case s.Valid&SetMtime != 0:
		out.Mtime = s.Mtime.time()
	case s.Valid&SetMtimeNow != 0:
		out.Mtime = &now
	}
	out.TimesNow = s.Valid&(SetAtimeNow|SetMtimeNow) == SetAtimeNow|SetMtimeNow
	return out
}

// StatFS is struct nv_statfs of shim/wire.h.
type StatFS struct {
	Block            uint64 // bytes
	Blocks, Free     uint64
	Files, FilesFree uint64
}
