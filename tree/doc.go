// Package tree is the file system of one process in the tree of its job: a vfs.FS over a connection to
// the index (tree/wire), the partition that the process writes, if it has one, and the partitions of others, which it reads.
// docs/dev/tree.md is the design.
//
// # Promises
//
//   - The index has names and attributes: each call on them is a request to the index.
//   - A write goes to the process's shard of the file, in its own partition, without a message and without an allocation. Close
//     and Sync publish the written ranges to the index, after they have made the shard durable.
//   - A read sees all writes of this process, by any descriptor, and what other processes had published when this process
//     last opened or synced the file. Data of the own partition is read without a message.
//   - After an error of Sync the written ranges stay to be published by the next Sync. After an error of Close they are
//     lost to the tree, unless the index adopts them.
//   - A process without a partition writes through the index.
//   - When the index was killed, open files continue with its successor. EIO is the result for a file without a name, for a file whose lock
//     another process has taken meanwhile, and for a change of names that was under way.
//   - A lock holds among all processes of the job. Its holder sees all data that earlier holders have written.
//
// # Concurrency
//
// All methods are safe for concurrent use. Order of the locks:
//
//	inode.mu        held for reading by reads and writes of a file, for writing by changes of its layout
//	  Client.mu     during a call; before wire.Conn's
//	    FS.mu       the tables; no other lock is taken with it
//	  inode.writtenMu  the unpublished ranges; no other lock is taken with it
//	  those of microfs
//
// A read holds inode.mu also while it reads the partition of another rank. The first read after an open or a sync holds the mutex for writing,
// since it may have to request the map and to mount that partition.
//
// # Files
//
//	client.go  the connection      fs.go      the file system: open files, releases
//	names.go   calls on paths      node.go    open directories
//	file.go    open files          inode.go   what is known of an open file
//	write.go   writing             publish.go telling the index
//	read.go    reading             source.go  shards that are read
//	layout.go  the map of a file   spans.go   sets of ranges
//	copies.go  reading what was lost         locks.go   fcntl and flock
//	successor.go  where the index was killed
package tree
