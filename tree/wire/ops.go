package wire

import "fmt"

// An Op is an operation. Codes never change.
type Op uint16

// The operations, each with its request and its answer. nil is a body without fields.
const (
	OpHello    Op = 1  // Hello, Welcome
	OpGoodbye  Op = 2  // nil, nil
	OpOpen     Op = 3  // Open, File
	OpOpenIno  Op = 4  // OpenIno, File
	OpClose    Op = 5  // Close, nil
	OpPublish  Op = 6  // Publication, AttrAnswer
	OpMap      Op = 7  // Map, File
	OpAppend   Op = 8  // Append, Space
	OpWrite    Op = 9  // Write, Written
	OpRead     Op = 10 // Read, Data
	OpStat     Op = 11 // Stat, AttrAnswer
	OpSetAttr  Op = 12 // SetAttr, AttrAnswer
	OpTruncate Op = 13 // Truncate, AttrAnswer
	OpAllocate Op = 14 // Allocate, AttrAnswer
	OpReadDir  Op = 15 // ReadDir, Entries
	OpAccess   Op = 16 // Access, nil
	OpMkdir    Op = 17 // Mkdir, nil
	OpUnlink   Op = 18 // Unlink, nil
	OpRename   Op = 19 // Rename, nil
	OpLink     Op = 20 // Link, nil
	OpSymlink  Op = 21 // Symlink, nil
	OpReadlink Op = 22 // Readlink, Text
	OpPath     Op = 23 // Path, Text
	OpStatFS   Op = 24 // nil, StatFS
	OpSync     Op = 25 // nil, nil
	OpLock     Op = 26 // Lock, Conflict
	OpShards   Op = 27 // Shards, nil
	OpGrow     Op = 28 // Grow, Grow
	OpSetCred  Op = 29 // Cred, nil
	OpReopen   Op = 30 // Reopen, nil
	OpReadCopy Op = 31 // Read, Data
	OpKeep     Op = 32 // Keep, nil
	OpLeave    Op = 33 // Leave, no answer
)

var opNames = [...]string{
	OpHello: "Hello", OpGoodbye: "Goodbye", OpOpen: "Open", OpOpenIno: "OpenIno", OpClose: "Close", OpPublish: "Publish",
	OpMap: "Map", OpAppend: "Append", OpWrite: "Write", OpRead: "Read", OpStat: "Stat", OpSetAttr: "SetAttr",
	OpTruncate: "Truncate", OpAllocate: "Allocate", OpReadDir: "ReadDir", OpAccess: "Access", OpMkdir: "Mkdir",
	OpUnlink: "Unlink", OpRename: "Rename", OpLink: "Link", OpSymlink: "Symlink", OpReadlink: "Readlink", OpPath: "Path",
	OpStatFS: "StatFS", OpSync: "Sync", OpLock: "Lock", OpShards: "Shards", OpGrow: "Grow", OpSetCred: "SetCred",
	OpReopen: "Reopen", OpReadCopy: "ReadCopy", OpKeep: "Keep", OpLeave: "Leave",
}

// String names the operation.
func (o Op) String() string {
	if int(o) < len(opNames) && opNames[o] != "" {
		return opNames[o]
	}
	return fmt.Sprintf("operation %d", uint16(o))
}
