// Package unionfs is a union of file systems, for a process that is no rank of the job:
// its own file system, in the singleton partition, is the upper layer, and those of the ranks
// are read-only lower layers, in the order of ranks.
//
// A directory that several layers have is one directory with the names of all. Any other
// file is that of the uppermost layer that has it. Files of the upper layer can be changed.
// Files of lower layers can be read; changing them is a *ReadOnlyError, since files are not
// copied up.
// A new file in a directory that only lower layers have creates the directory in the upper
// layer first.
//
// The union resolves symbolic links itself, since their targets may be in another layer.
//
// # Files
//
//	unionfs.go  the calls       walk.go  resolving paths
//	file.go     open files      ino.go   inode numbers
//
// # Concurrency
//
// All methods are safe for concurrent use. No lock is held while a layer is called,
// except the lock of an open file of a rank.
package unionfs
