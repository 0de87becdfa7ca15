// Package microfs is the micro file system: the private name space that one
// rank has on its slice of a namespace (the paper's section III.A).
//
// It promises: when a call that changes something has returned, its effect
// survives a crash of this process at once, and power loss of a device with a
// volatile write cache after Sync or the last Close (that a file which was
// never written was closed survives with whatever is changed next, or Sync);
// a crash leaves the state
// after some prefix of the operations that holds every acknowledged one; a
// read returns bytes that were written there, or EIO. With Options.WriteBehind
// the last writes to one file may be missing after a crash as long as no other
// call followed.
//
// # Use
//
// Format once, then Mount; one writer at a time (who that is, is decided
// elsewhere), any number of read-only mounts beside it. All methods of FS and
// File are safe for concurrent use and take turns.
//
// # Locks
//
// There is one, FS.mu. Whoever holds it owns the device queue, the log, the
// tree, the pool and the scratch memory, and does its I/O on its own thread
// while holding it. Nothing is called back with it held but Options.Logf and
// Options.Reserve, which must not call into the FS. The background goroutine
// (checkpoint.go) takes it for one chunk at a time. A read or write of more than 8 MiB
// gives it back between its operations (FS.yield): the tree may be another one then, but
// the file is open, and nobody else writes to it by an open file.
//
// # Files of the package, along a write
//
//	names.go, attributes.go, file.go  the calls       path.go    resolving paths
//	allocate.go         reserving hugeblocks, taking them from a file
//	plan.go             which hugeblocks              pool.go    free runs
//	write.go            stages of a write             scratch.go commands, checksums
//	behind.go           writes that are put off
//	commit.go           a log group                   retired.go blocks not to touch
//	sync.go             what is durable               reconnect.go  after a loss
//	apply.go            a record changes the tree     inode.go, inodetable.go, nametable.go  the tree
//	extent.go           what a file maps              extentmap.go in chunks, sums.go checksums
//	checkpoint.go       state checkpoints             state.go, stateblocks.go, stateheader.go
//	mount.go            recovery                      superblock.go, layout.go
//	claim.go            who writes the partition
//	check.go, check_tree.go           fsck            repair.go, verify.go
//	read.go             reads, verified               format.go  an empty file system
//	shrink.go           ending earlier
//	readahead.go        small reads, in sequence      aheadpool.go  their buffers
//	lock.go             taking turns
//	types.go            what callers see              errors.go, fs.go, io.go
//
// # Layout of a partition
//
//	0            superblock
//	4 KiB        state header, two slots
//	12 KiB       claim, two slots
//	20 KiB       operation log: LogPages pages of two 4 KiB slots (package oplog)
//	...          state area 0, state area 1
//	...          data: hugeblocks
//	end - 4 KiB  superblock, second copy
//
// docs/dev/format.md draws the structures byte by byte.
package microfs
