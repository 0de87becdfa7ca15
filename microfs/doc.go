// Package microfs is the micro file system: the private name space that one
// rank has on its slice of a namespace (the paper's section III.A).
//
// It is log-structured: nothing is overwritten in place, metadata is in memory, each
// change is a record of the operation log (package oplog), and now and then the whole
// tree is written as a state checkpoint, which frees the log pages before it.
//
// # Promises
//
//   - The effect of a call that has returned survives a crash of this process. On a
//     device with a volatile write cache it survives a loss of power after Sync or the
//     last Close. (The close of a file that was never written is logged with the next
//     change, or by Sync.)
//   - After a crash the state is the one after some prefix of the operations, and the
//     prefix has every acknowledged operation. With Options.WriteBehind the last writes
//     to one file may be missing, as long as no other call followed them.
//   - A read returns the bytes that were written there, or EIO.
//   - For a file with bytes in other partitions (FormatOptions.Ranges) the package stores
//     in which partitions these bytes are. It does not read them.
//
// # Use
//
// The caller formats a partition once, then mounts it: one mount for writing at a time,
// and any number of read-only mounts at the same time. The package does not choose the
// writer; the caller does (Options.Claimed). All methods of FS and File are safe for
// concurrent use; one runs at a time.
//
// # Locks
//
// There is one lock, FS.mu. Its holder owns the device queue, the log, the tree, the
// pool and the scratch memory, and does its I/O on its own thread while it holds the
// lock. Of the caller's functions only Options.Logf and Options.Reserve are called with
// the lock held; they must not call the FS. The background goroutine (checkpoint.go)
// holds the lock for one chunk at a time. A read or write of more than 8 MiB gives the
// lock up between its operations (FS.yield). Other operations may change the tree then,
// but the file stays open, and no other write to the file by a descriptor is let in.
//
// # Files of the package, along a write
//
//	names.go, attributes.go, file.go  the calls       path.go    resolving paths
//	allocate.go         fallocate: reserving, punching
//	plan.go             choosing hugeblocks           pool.go    free runs
//	write.go            stages of a write             scratch.go commands, checksums
//	writebehind.go      write-behind
//	commit.go           a log group                   retired.go blocks of lost commands
//	sync.go             durability                    reconnect.go  lost connections
//	apply.go            a record changes the tree     inode.go, inodetable.go, nametable.go  the tree
//	extent.go           what a file maps              extentmap.go in chunks, sums.go checksums
//	checkpoint.go       state checkpoints             state.go, stateblocks.go, stateheader.go
//	mount.go            recovery                      superblock.go, layout.go
//	claim.go            ownership of the partition    deallocate.go  TRIM
//	check.go, check_tree.go           fsck            repair.go, verify.go
//	read.go             reads, verified               format.go  an empty file system
//	shrink.go           making the partition shorter
//	ranges.go           bytes in other partitions     rangemap.go  in lists
//	readahead.go        small, sequential reads       readaheadpool.go  their buffers
//	lock.go             a fair lock
//	types.go            types of the interface        errors.go, fs.go, io.go
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
