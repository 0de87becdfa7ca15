package microfs

import (
	"errors"
	"fmt"
	"syscall"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// Errors of Format and Mount.
var (
	// ErrUnformatted: both superblocks are zeros.
	ErrUnformatted = errors.New("partition is not formatted")
	// ErrTooSmall: the partition has no space for a file system.
	ErrTooSmall = errors.New("partition is too small")
	// ErrBadFormat: format options that are not possible.
	ErrBadFormat = errors.New("format is not possible")
	// ErrNoNames: the state checkpoint has no space for another name, inode or range. It is
	// syscall.ENOSPC.
	ErrNoNames = fmt.Errorf("there is no space for another name: names and inodes have 1/128 of a partition, "+
		"with the ranges of a job's index 1/64 of the store, at most 256 MiB; "+
		"larger partitions (--size, or larger namespaces) hold more, and so do fewer, larger files: %w", syscall.ENOSPC)
	// ErrInUse: a partition cannot be made as short as requested, since there is data beyond that
	// length.
	ErrInUse = errors.New("there are files behind the new end")
	// ErrVersion: the media has a version that this program cannot use.
	ErrVersion = errors.New("media version is not supported")
	// ErrCorrupt: the media has a content that no crash can leave.
	ErrCorrupt = errors.New("media is corrupt")
	// ErrOtherGeneration: the partition belongs to another partition table.
	ErrOtherGeneration = errors.New("partition belongs to an earlier format of the namespace")
)

// DamageError says which bytes of which file cannot be read. It unwraps to EIO.
type DamageError struct {
	Ino    Ino
	Name   string // a path of the file, if one is known
	Offset int64  // of the damaged unit in the file
	Length int64
	LBA    nvmf.LBA
	Cause  error // error of the device; nil if the device returned wrong bytes
}

// Error names the file, its bytes and their LBA.
func (e *DamageError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s cannot be read at bytes %d to %d: %v", e.Name, e.Offset, e.Offset+e.Length-1, e.Cause)
	}
	return fmt.Sprintf("checksum of %s does not hold at bytes %d to %d (LBA %d): the data was damaged on the media",
		e.Name, e.Offset, e.Offset+e.Length-1, e.LBA)
}

// Unwrap returns EIO.
func (e *DamageError) Unwrap() error { return syscall.EIO }

// MovedOn reports whether a read-only mount may have failed only because a writer
// changed the file system meanwhile. Then the caller should mount again.
func MovedOn(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, oplog.ErrDamaged) || errors.Is(err, oplog.ErrRecord)
}

// brokenError is the error of every call once the file system is out of service. EIO
// comes first: an errno inside the cause (ECONNREFUSED) is not the answer to a
// call on a file.
type brokenError struct{ cause error }

func (e *brokenError) Error() string   { return "file system is out of service: " + e.cause.Error() }
func (e *brokenError) Unwrap() []error { return []error{syscall.EIO, e.cause} }
