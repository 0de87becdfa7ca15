// Package unionfs shows a process that is no rank what the job has: its own file system, the
// solo partition, and below it those of the ranks, by name.
//
// The own file system is on top; the ranks follow in their order. A directory
// that several have is one directory with the names of all. Of anything else the first one
// counts. What the own file system has can be changed as ever. What only a rank has can
// be read, and changing it is a *ReadOnlyError. Something new in a directory
// that only ranks have makes that directory in the own file system first.
//
// Symbolic links are followed here, since their targets may be another's.
//
// # Files
//
//	unionfs.go  the calls       walk.go  resolving paths
//	file.go     open files      ino.go   inode numbers
//
// # Concurrency
//
// All methods are safe for concurrent use. No lock is held while a file system is called,
// but that of an open file of a rank.
package unionfs
