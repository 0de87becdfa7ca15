// Package tree is the file system of one process in the tree of its job: a posixshim.FS over a connection to
// the index (tree/wire), the partition that the process writes, if it has one, and the partitions of others, which it reads.
// docs/dev/tree.md is the design.
//
// # Promises
//
//   - Names and attributes are the index's: each call asks it.
//   - What this process writes goes to its shard of the file, in its own partition: no message and nothing allocated. The
//     ranges that were written are published by Close and Sync: the shard is durable first.
//   - A read sees what this process has written, by whatever descriptor, and what others had published when the
//     file was opened, or synced, last. Bytes of the own partition are read without a message.
//   - After an error of Sync what was written stays to be published by the next one. After an error of Close it is
//     lost to the tree, unless the index adopts it.
//   - A process without a partition writes by way of the index.
//   - Where the index was killed, what is open goes on with its successor. A file that has lost its last name, or whose lock another process
//     has by then, is EIO; so is a change of names that was under way.
//   - A lock is in the way of all processes of the job. Who has it sees what was written under it before.
//
// # Concurrency
//
// All methods are safe for concurrent use. Order of the locks:
//
//	inode.mu        held shared by reads and writes of a file, alone by what changes where its bytes are
//	  Client.mu     during a call; before wire.Conn's
//	    FS.mu       the tables; nothing is called with it
//	  inode.noting  the ranges that were written; nothing is called with it
//	  those of microfs
//
// A read holds inode.mu also while another's partition is read. The first read behind an open or a sync holds it alone,
// since it may have to ask for the map and to mount.
//
// # Files
//
//	client.go  the connection      fs.go      the file system: open files, releases
//	names.go   calls on paths      node.go    open directories
//	file.go    open files          inode.go   what is known of an open file
//	write.go   writing             publish.go telling the index
//	read.go    reading             source.go  shards that are read
//	layout.go  the map of a file   spans.go   sets of ranges
//	locks.go   fcntl and flock               successor.go  where the index was killed
package tree
