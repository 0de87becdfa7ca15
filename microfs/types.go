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

// Cred is who calls, as permission checks see it. UID 0 may do anything.
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

// Attr is what stat(2) tells of a file.
type Attr struct {
	Ino    Ino
	Mode   uint32 // S_IF* and permission bits, as st_mode
	Nlink  uint32
	UID    uint32
	GID    uint32
	Size   int64
	Blocks int64 // allocated 512-byte units; what other partitions have counts, too
	Atime  time.Time
	Mtime  time.Time
	Ctime  time.Time
	Btime  time.Time // creation
	// Closed says that the last writer closed the file and nothing has
	// changed its content since: a complete checkpoint, not a torn one.
	Closed bool
	// Birth tells files of one number apart: after a loss of power a number that
	// was not durable may be given out again. It is the time of creation.
	Birth uint64
	// Cut counts what took bytes from the file: truncations to less than its size,
	// Punch and ZeroRange. It counts in file systems with ranges only.
	Cut uint32
}

// SetAttr selects attributes to change. Nil fields stay as they are.
type SetAttr struct {
	Mode     *uint32 // permission bits only
	UID, GID *uint32
	Atime    *time.Time
	Mtime    *time.Time
	// TimesNow says that the times are those of the call (UTIME_NOW): write
	// permission is then enough to set them.
	TimesNow bool
}

// Dirent is one name of a directory.
type Dirent struct {
	Name string
	Ino  Ino
	Mode uint32 // file type bits of st_mode
}

// StatFS is what statfs(2) tells, and what `nvmecr stat` adds.
type StatFS struct {
	Hugeblock   nvmf.Bytes
	Blocks      Hugeblock // in the data area, without those that only overwrites take
	Free        Hugeblock // of them
	Avail       Hugeblock // of these those that who asks can have
	Files       uint64    // inodes in use
	FilesFree   uint64    // how many more the state area has room for, about
	LogPages    uint64
	LogFree     uint64 // pages until a state checkpoint is forced
	StateBytes  nvmf.Bytes
	StateMax    nvmf.Bytes
	OpenFiles   int
	Generation  uint64 // mounts for writing since format
	Checkpoints uint64 // state checkpoints since format
	Ranges      bool   // files may have bytes in other partitions
}

// EscapeError is returned by path operations whose path leaves the mount:
// ".." above the root, or an absolute symbolic link that points elsewhere.
// Path is the absolute path to go on with outside.
type EscapeError struct{ Path string }

func (e *EscapeError) Error() string { return fmt.Sprintf("path leads out of the mount to %s", e.Path) }
