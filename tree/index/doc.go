// Package index is the index of a job's tree: the one process that changes names, and knows of every byte
// of every file which partition has it. docs/dev/tree.md is its design.
//
// The index is a microfs with ranges, and this package answers calls of clients on it (package wire): ranks, which
// publish what they have written to their own partitions, and processes that are no rank.
//
// # Promises
//
//   - A call that was answered is in the log of the file system. A crash of the index keeps it.
//   - A file that a client has open stays, with or without a name, until it is closed or the client's connection ends.
//   - Space that was given for an append is given to nobody else as long as its client has the file open for writing.
//     Where a client dies before it publishes what it has appended, zeros are left, or nothing if nobody has appended behind it.
//   - A shard is released when no client has its file open and no range names it any more, and then only if the file is
//     gone or of a later cut. Where nobody takes the release, the next Shards of that partition finds the shard.
//   - What a client had not published when its connection ended without Goodbye is adopted (Options.Adopt). Calls on
//     files that it had open for writing wait for that.
//   - A lock of a client is in the way of all others until the client gives it up, closes the file, or ends. No request waits for one.
//   - No client can make the index panic or take memory without bound.
//
// # Concurrency
//
// Serve is called on a goroutine of the caller's for each connection, and answers its requests there. One mutex, Index.mu,
// guards all state and is held during a request: the file system's calls take turns anyway. It comes before the
// lock of the file system, and behind Index.syncing, which is held while what several requests have done is made durable for all of them (sync.go). It is not held while a request waits for an adoption or for its connection, nor while Options.Adopt
// and Options.Grow run.
//
// # Files
//
//	index.go  New, Serve    client.go   a connection     calls.go    one type for each operation
//	open.go   open files    bytes.go    their bytes      release.go  shards that nobody needs
//	adopt.go  what clients leave that die             locks.go  of fcntl and flock
//	sync.go   what is durable before an answer
//	check.go  for nvmecr fsck        successor.go  in the place of an index that was killed
package index
