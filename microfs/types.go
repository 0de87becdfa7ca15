package microfs

import (
	"fmt"
	"time"

	"nvmecr/nvmf"
)

// Ino is an inode number. It is never reused within a file system.
type Ino uint64

// RootIno is the root directory.
const RootIno Ino = 1

// Hugeblock is the number of a hugeblock, counted from the start of the data
// area of the partition, or a count of them.
type Hugeblock uint32

// Cred has the credentials of a caller for permission checks. UID 0 may do anything.
type Cred struct {
	UID, GID uint32
	Groups   []uint32
}

func (c *Cred) inGroup(gid uint32) bool {
	if c.GID == gid {
		return true
	}
	for _, g := range c.Groups {
		if g == gid {
			return true
		}
	}
	return false
}

// Attr has the values of stat(2) for a file.
type Attr struct {
	Ino    Ino
	Mode   uint32 // S_IF* and permission bits, as st_mode
	Nlink  uint32
	UID    uint32
	GID    uint32
	Size   int64
	Blocks int64 // allocated 512-byte units, including bytes in other partitions
	Atime  time.Time
	Mtime  time.Time
	Ctime  time.Time
	Btime  time.Time // creation
	// Closed says that the last writer closed the file and its content has not changed since: a
	// complete checkpoint, not a partial one.
	Closed bool
	// Birth distinguishes files with the same number: after a power loss a number that was not
	// durable may be allocated again. It is the time of creation.
	Birth uint64
	// Cut counts the operations that removed bytes from the file: truncations to less than its
	// size, Punch and ZeroRange. It counts only in file systems with ranges.
	Cut uint32
}

// SetAttr selects attributes to change. Nil fields stay as they are.
type SetAttr struct {
	Mode     *uint32 // permission bits only
	UID, GID *uint32
	Atime    *time.Time
	Mtime    *time.Time
	// TimesNow says that the times are the present (UTIME_NOW), for which write permission is
	// enough.
	TimesNow bool
}

// Dirent is one name of a directory.
type Dirent struct {
	Name string
	Ino  Ino
	Mode uint32 // file type bits of st_mode
}

// StatFS has the values of statfs(2), and more for `nvmecr stat`.
type StatFS struct {
	Hugeblock   nvmf.Bytes
	Blocks      Hugeblock // in the data area, without geometry.spare
	Free        Hugeblock // of Blocks
	Avail       Hugeblock // of Free, those that the caller can have
	Files       uint64    // inodes in use
	FilesFree   uint64    // estimate of how many more the state area has space for
	LogPages    uint64
	LogFree     uint64 // pages until a state checkpoint is forced
	StateBytes  nvmf.Bytes
	StateMax    nvmf.Bytes
	OpenFiles   int
	Generation  uint64 // mounts for writing since format
	Checkpoints uint64 // state checkpoints since format
	Ranges      bool   // files may have bytes in other partitions
}

// EscapeError is returned by path operations whose path leaves the mount: by ".." above the root,
// or by an absolute symbolic link that points elsewhere. Path is the absolute path to continue with
// outside.
type EscapeError struct{ Path string }

func (e *EscapeError) Error() string { return fmt.Sprintf("path leads out of the mount to %s", e.Path) }
